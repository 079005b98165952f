// For tests: requests of whole tensors in the host's memory.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "client/src/tensors/request.h"

namespace bps::testing {

// `in` is only read.
inline OperationBuffer buffer_of(std::span<const std::byte> in) {
  OperationBuffer buffer;
  buffer.bytes = {const_cast<std::byte*>(in.data()), in.size()};
  return buffer;
}

inline Request push_pull_of(TensorId tensor, std::span<const std::byte> in, std::span<std::byte> out,
                            Operation operation, Request::Done done) {
  Request request;
  request.tensor = tensor;
  request.call = operation;
  request.in = buffer_of(in);
  request.out = buffer_of(out);
  request.done = std::move(done);
  return request;
}

// A sum whose answer is read in place.
inline Request view_of(TensorId tensor, std::span<const std::byte> in, Request::Done done) {
  Request request = push_pull_of(tensor, in, {}, Operation::sum, std::move(done));
  request.view = true;
  return request;
}

// `out`: empty but at the root.
inline Request reduce_of(TensorId tensor, std::span<const std::byte> in, std::span<std::byte> out,
                         Operation operation, Rank root, Request::Done done) {
  Request request = push_pull_of(tensor, in, out, operation, std::move(done));
  request.call = RoundCall::reduce(operation, root);
  return request;
}

// `out`: this rank's part.
inline Request reduce_scatter_of(TensorId tensor, std::span<const std::byte> in, std::span<std::byte> out,
                                 Operation operation, Request::Done done) {
  Request request = push_pull_of(tensor, in, out, operation, std::move(done));
  request.call = RoundCall::reduce_scatter(operation);
  return request;
}

// `in`: this rank's part.
inline Request all_gather_of(TensorId tensor, std::span<const std::byte> in, std::span<std::byte> out,
                             Request::Done done) {
  Request request = push_pull_of(tensor, in, out, Operation::sum, std::move(done));
  request.call = RoundCall::all_gather();
  return request;
}

inline Request broadcast_of(TensorId tensor, std::span<std::byte> buffer, Rank root, Request::Done done) {
  Request request;
  request.tensor = tensor;
  request.call = RoundCall::broadcast(root);
  request.out = buffer_of(buffer);
  request.done = std::move(done);
  return request;
}

}  // namespace bps::testing

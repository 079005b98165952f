// What a program asks of one tensor: one of the calls of RoundKind.
//
// The problem: a request goes from the program's thread through a queue to the client's loop, and from there
// to the tensor, whose round it is until the end. Here it is one record all that way: the C API fills it from
// the caller's buffers, Client checks it, once, and adds what the buffers lie in, and from then on it is only
// moved.
//
// Owner: one after another the caller, the queue of Operations, and TensorState. The memory of its buffers is
// the program's, and stays valid until `done`; `in` stays unchanged as long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "client/src/group/local_group.h"
#include "proto/base/dtype.h"
#include "proto/base/ids.h"
#include "proto/base/memory/memory_kind.h"
#include "proto/base/parts.h"
#include "proto/base/result.h"
#include "proto/base/round_call.h"
#include "proto/base/scale.h"
#include "proto/wire/local_messages.h"
#include "proto/wire/messages.h"

namespace bps {

struct TensorShape {
  std::string name;
  DType dtype = DType::f32;
  std::uint64_t elements = 0;
  bool is_async = false;
  Parts parts = {};
  RankList ranks = {};   // that share it
  bool is_call = false;  // it stands for a call on the group of that name
  std::string text() const { return (is_call ? "call on group '" : "tensor '") + name + "'"; }
  std::uint64_t bytes() const { return elements * size_of(dtype); }
};

inline TensorShape shape_of(const TensorDeclaration& declaration) {
  const RankList ranks(declaration.ranks);
  return {declaration.name,
          declaration.dtype,
          declaration.elements,
          declaration.mode == Mode::async,
          Parts(declaration.parts, ranks),
          ranks};
}

struct Request {
  using Done = std::function<void(Result<std::uint32_t>)>;  // the weight

  TensorId tensor;
  RoundCall call;
  bool view = false;  // the answer stays in library memory, and `out` is not given
  // Both are the whole tensor or its first elements, and the same memory or apart. A broadcast has `out`
  // only, which is read at the root and written elsewhere. A reduce has `out` at the root only. `out` of a
  // reduce_scatter and `in` of an all_gather are this rank's part, apart from the whole tensor or where that
  // has it.
  OperationBuffer in, out;
  std::shared_ptr<OutputWatch> watch;  // see LocalPiece; may be none
  Done done;
  Scale scale = {};  // of `in`
  // Of a call without a name, as in PushPull: see GroupCalls.
  std::uint64_t number = 0;
  std::uint64_t whole = 0;

  bool is_broadcast() const { return call.is_broadcast(); }
  // What is read if anything is.
  const OperationBuffer& source() const { return is_broadcast() ? out : in; }
  MemoryKind memory() const { return source().memory; }  // of both buffers
  // Of the tensor, those that are in this call.
  std::uint64_t bytes(const TensorShape& shape) const {
    return call.is_of_parts() ? shape.bytes() : source().bytes.size();
  }
};

// Of the job, from its beginning to its end.
struct RequestRules {
  std::uint32_t world_size = 1;
  LocalGrouping local_group = LocalGrouping::off;
  bool sums_on_hosts = false;  // the ranks of some host sum among themselves first
  Rank self = {};
};

// What is wrong with the request, with the exact numbers: `invalid_argument`. Pure.
Status check(const Request& request, const TensorShape& tensor, const RequestRules& rules);

}  // namespace bps

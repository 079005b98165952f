#include "client/src/engine/declarations.h"

#include <utility>

#include "proto/wire/tensor_shape.h"

namespace bps {

void Declarations::declare(std::vector<TensorDeclaration> tensors, Done done, TimePoint now) {
  const std::uint64_t request = next_request_++;
  Pending& pending = pending_[request];
  pending.tensors = std::move(tensors);
  pending.done = std::move(done);
  pending.since = now;
  ask_next(request, pending);
}

void Declarations::ask_next(std::uint64_t request, Pending& pending) {
  Declare declare;
  declare.request = request;
  std::uint64_t partitions = 0;
  while (pending.asked < pending.tensors.size() && declare.tensors.size() < kMaxTensorsPerDeclare) {
    const TensorDeclaration& tensor = pending.tensors[pending.asked];
    partitions += partitioner_of(tensor, data_.partition_bytes()).count() + listed(tensor);
    if (partitions > kMaxPartitionsPerDeclare && !declare.tensors.empty()) break;
    declare.tensors.push_back(tensor);
    ++pending.asked;
  }
  link_.send(declare);
}

Result<std::optional<Declarations::Ended>> Declarations::on_declared(Declared& declared) {
  const auto found = pending_.find(declared.request);
  const bool expected =
      found != pending_.end() && declared.tensors.size() == found->second.asked - found->second.answered;
  if (!expected) {
    return make_error(ErrorCode::protocol, link_.name() + " answered a declaration that was not asked",
                      "run the same bps version everywhere; if it is, please report this");
  }
  Pending& pending = found->second;
  for (DeclaredTensor& tensor : declared.tensors) {
    const TensorDeclaration& declaration = pending.tensors[pending.answered++];
    pending.ids.push_back(tensor.tensor);
    if (tensor.error.code != ErrorCode::ok) {
      if (!pending.error) pending.error = std::move(tensor.error);
    } else if (Status status = data_.add_tensor(declaration, tensor); !status.ok()) {
      if (status.error().code != ErrorCode::out_of_memory) return status.error();
      // The other ranks are not to wait for this one, and the program has nothing that it could drop.
      tell_failed(tensor.tensor, status.error());
      if (data_.drop(tensor.tensor).ok()) link_.send(DropTensors{0, data_.job_run(), {tensor.tensor}, {}});
      if (!pending.error) pending.error = status.error();
    }
  }
  if (pending.answered < pending.tensors.size()) {
    ask_next(declared.request, pending);
    return std::optional<Ended>();
  }
  Pending ended = std::move(pending);
  pending_.erase(found);
  return std::optional<Ended>({std::move(ended.done), ended.error
                                                          ? Result<std::vector<TensorId>>(*ended.error)
                                                          : std::move(ended.ids)});
}

void Declarations::tell_failed(TensorId tensor, const Error& error) {
  const auto [told, is_new] = failed_.try_emplace(tensor, TensorFailed{data_.job_run(), tensor, error});
  if (is_new) link_.send(told->second);
}

void Declarations::send_failed() const {
  for (const auto& [tensor, failed] : failed_)
    link_.send(failed);
}

// The piece that was asked and not answered: with the same number, and just as it was.
void Declarations::ask_again() const {
  for (const auto& [request, pending] : pending_) {
    const auto at = [&tensors = pending.tensors](std::size_t index) {
      return tensors.begin() + static_cast<std::ptrdiff_t>(index);
    };
    link_.send(Declare{request, {at(pending.answered), at(pending.asked)}});
  }
}

void Declarations::fail(const Error& error) {
  for (auto& [request, pending] : std::exchange(pending_, {}))
    pending.done(error);
}

std::vector<Declarations::Open> Declarations::requests() const {
  std::vector<Open> requests;
  for (const auto& [request, pending] : pending_)
    requests.push_back({request, pending.since});
  return requests;
}

}  // namespace bps

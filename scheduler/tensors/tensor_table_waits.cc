// What tensors a job has, where they lie and what is not confirmed yet: for queries.
#include <algorithm>

#include "scheduler/tensors/tensor_table.h"

namespace bps {

std::optional<TensorId> TensorTable::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

const TensorDeclaration* TensorTable::declaration_of(TensorId id) const {
  return id.value < tensors_.size() ? &tensors_[id.value].declaration : nullptr;
}

std::vector<TensorTable::Unconfirmed> TensorTable::unconfirmed() const {
  std::vector<Unconfirmed> out;
  for (const auto& [number, batch] : batches_) {
    Unconfirmed& entry = out.emplace_back();
    entry.number = number;
    entry.tensors = batch.tensors;
    for (const auto& [server, acks] : batch.waiting)
      entry.waiting.push_back(server);
    entry.servers = entry.waiting.size();
    for (const ServerId server : batch.accepted)
      entry.servers += batch.waiting.count(server) == 0 ? 1 : 0;
  }
  return out;
}

std::uint64_t TensorTable::bytes() const {
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : tensors_)
    bytes += bytes_of(tensor.declaration);
  return bytes;
}

std::uint32_t TensorTable::partitions_at(ServerId server) const {
  std::uint32_t count = 0;
  for (const Tensor& tensor : tensors_) {
    if (tensor.state != State::ready) continue;
    for (const LaneIndex owner : tensor.owners)
      count += config_.lanes[owner.value].server == server ? 1 : 0;
  }
  return count;
}

std::uint64_t TensorTable::bytes_at(ServerId server) const {
  std::uint64_t bytes = 0;
  for (std::uint32_t lane = 0; lane < config_.lanes.size(); ++lane) {
    if (config_.lanes[lane].server == server) bytes += assigner_.assigned_bytes(LaneIndex{lane});
  }
  return bytes;
}

}  // namespace bps

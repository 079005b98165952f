// What a scheduler learns of tensors from nodes that come back, and what it tells them.
#include <fmt/format.h>

#include <algorithm>

#include "scheduler/tensors/tensor_table.h"

namespace bps {

Status TensorTable::restore(const KnownTensor& known, Rank reporter) {
  const TensorDeclaration& declaration = known.declaration;
  const DeclaredTensor& placed = known.placed;
  const auto contradicts = [&](const char* what) {
    return make_error(ErrorCode::protocol,
                      fmt::format("{} of tensor {} ('{}') of job {} contradicts what others say", what,
                                  placed.tensor.value, declaration.name, config_.job),
                      "start the job again");
  };
  if (placed.owners.size() != partitions_of(declaration)) return contradicts("the number of partitions");
  if (placed.tensor.value >= config_.max_tensors) return contradicts("the number");
  skip(TensorId{placed.tensor.value + 1},
       PartitionId{static_cast<std::uint32_t>(placed.first_partition.value + placed.owners.size())});
  Tensor& tensor = tensors_[placed.tensor.value];
  const bool is_new = tensor.declaration.name.empty();
  if (is_new && by_name_.contains(declaration.name)) return contradicts("the name");
  if (!is_new && (tensor.declaration.name != declaration.name || !alike(tensor.declaration, declaration) ||
                  tensor.first != placed.first_partition)) {
    return contradicts("the declaration");
  }
  if (is_new) {
    tensor.declaration = declaration;
    tensor.declaration.priority = placed.priority;
    tensor.declared_by = reporter;
    tensor.first = placed.first_partition;
    tensor.owners = placed.owners;
    tensor.state = State::ready;
    tensor.error = {};
    by_name_.emplace(declaration.name, placed.tensor);
    std::uint64_t rest = bytes_of(declaration);
    for (const LaneIndex owner : tensor.owners) {
      const std::uint64_t bytes = std::min(rest, config_.partition_bytes);
      assigner_.take(owner, bytes);
      rest -= bytes;
    }
  }
  if (placed.error.code != ErrorCode::ok && tensor.state == State::ready) {
    tensor.state = State::failed;
    tensor.error = placed.error;
  }
  return {};
}

void TensorTable::skip(TensorId tensor, PartitionId partition) {
  next_partition_ = std::max<std::uint64_t>(next_partition_, partition.value);
  if (tensor.value <= tensors_.size()) return;
  Tensor hole;
  hole.state = State::refused;
  tensors_.resize(tensor.value, hole);
}

bool TensorTable::is_known(const TensorSlices& held) const {
  if (held.tensor.value >= tensors_.size()) return false;
  const Tensor& tensor = tensors_[held.tensor.value];
  if (tensor.state != State::ready || tensor.declaration.name != held.name) return false;
  return std::all_of(held.partitions.begin(), held.partitions.end(), [&](const PartitionSlice& slice) {
    return slice.partition.value - tensor.first.value < tensor.owners.size();  // unsigned: below, too
  });
}

void TensorTable::give(TensorId tensor, PartitionId partition, LaneIndex lane) {
  Tensor& known = tensors_[tensor.value];
  known.owners[partition.value - known.first.value] = lane;
}

bool TensorTable::matches(const KnownTensor& known) const {
  if (known.placed.tensor.value >= tensors_.size()) return false;
  const Tensor& tensor = tensors_[known.placed.tensor.value];
  return tensor.first == known.placed.first_partition && tensor.owners.size() == known.placed.owners.size() &&
         tensor.declaration.name == known.declaration.name;
}

std::vector<PartitionMove> TensorTable::news_for(const WorkerReport& report, bool only_known) const {
  std::vector<PartitionMove> moves;
  for (std::uint32_t number = 0; number < tensors_.size(); ++number) {
    const Tensor& tensor = tensors_[number];
    if (tensor.state != State::ready) continue;
    const auto found = report.tensors.find(TensorId{number});
    // Of a tensor that it has not declared, it will have to resume what has moved; to resume the rest is
    // harmless.
    const bool known = found != report.tensors.end();
    if (only_known && !known) continue;
    for (std::uint32_t i = 0; i < tensor.owners.size(); ++i) {
      if (known && found->second.placed.owners[i] == tensor.owners[i]) continue;
      moves.push_back({PartitionId{tensor.first.value + i}, tensor.owners[i]});
    }
  }
  return moves;
}

std::vector<TensorFailed> TensorTable::failures_for(const WorkerReport& report) const {
  std::vector<TensorFailed> failures;
  for (std::uint32_t number = 0; number < tensors_.size(); ++number) {
    const Tensor& tensor = tensors_[number];
    if (tensor.state != State::failed) continue;
    // Also of one that it has not declared: other ranks of its host may wait for it to say so.
    const auto known = report.tensors.find(TensorId{number});
    const bool is_told = known != report.tensors.end() && known->second.placed.error.code != ErrorCode::ok;
    if (!is_told) failures.push_back({config_.run, TensorId{number}, tensor.error});
  }
  return failures;
}

DropTensors TensorTable::unwanted(ServerId server, const RunReport& report) const {
  DropTensors out{config_.run, {}, {}};
  for (const auto& [id, held] : report.tensors) {
    const bool exists = id.value < tensors_.size() && (tensors_[id.value].state == State::ready ||
                                                       tensors_[id.value].state == State::declaring);
    if (!exists || servers_of(tensors_[id.value]).count(server) == 0) {
      out.tensors.push_back(id);
      continue;
    }
    const Tensor& tensor = tensors_[id.value];
    for (const PartitionSlice& slice : held.partitions) {
      const std::uint64_t index = std::uint64_t{slice.partition.value} - tensor.first.value;
      const bool is_its =
          index < tensor.owners.size() && config_.lanes[tensor.owners[index].value].server == server;
      if (!is_its) out.partitions.push_back(slice.partition);
    }
  }
  return out;
}

}  // namespace bps

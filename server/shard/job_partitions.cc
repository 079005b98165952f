#include "server/shard/job_partitions.h"

#include <algorithm>
#include <utility>

#include "proto/base/assert.h"
#include "server/aggregate/round_slots.h"

namespace bps {

JobPartition& JobPartitions::add(PartitionId id, TensorId tensor) {
  const auto [place, is_new] = here_.try_emplace(id);
  BPS_ASSERT(is_new);  // the ledger has seen to it
  dropped_.erase(id);
  dropped_before_.erase(id);
  of_tensor_[tensor].push_back(id);
  place->second.tensor = tensor;
  return place->second;
}

JobPartition* JobPartitions::find(PartitionId id) {
  const auto found = here_.find(id);
  return found == here_.end() ? nullptr : &found->second;
}

void JobPartitions::drop(TensorId tensor) {
  const auto of_tensor = of_tensor_.extract(tensor);
  if (of_tensor.empty()) return;
  for (const PartitionId id : of_tensor.mapped())
    drop_here(id);
}

void JobPartitions::drop(PartitionId id) {
  const JobPartition* const partition = find(id);
  if (partition == nullptr) return;
  const auto of_tensor = of_tensor_.find(partition->tensor);
  std::erase(of_tensor->second, id);
  if (of_tensor->second.empty()) of_tensor_.erase(of_tensor);
  drop_here(id);
}

void JobPartitions::drop_here(PartitionId id) {
  if (dropped_.size() >= kDroppedRemembered / 2) dropped_before_ = std::exchange(dropped_, {});
  dropped_.insert(id);
  const auto here = here_.find(id);
  JobPartition& partition = here->second;
  partition.dropped = true;
  partition.aggregator->let_go();
  if (partition.slots != nullptr) partition.slots->remove_user();
  if (partition.references == 0) {
    here_.erase(here);
  } else {
    doomed_.insert(here_.extract(here));
  }
}

void JobPartitions::reap() {
  if (doomed_.empty()) return;
  std::erase_if(doomed_, [](const auto& entry) { return entry.second.references == 0; });
}

std::uint64_t JobPartitions::bytes_doomed() const {
  std::uint64_t bytes = 0;
  for (const auto& [id, partition] : doomed_) {
    const PartitionShape& shape = partition.aggregator->shape();
    const ReservedBytes reserved = reserved_bytes(shape.dtype, shape.elements, shape.mode);
    bytes += reserved.own + reserved.second;
    if (partition.slots == nullptr) continue;
    bytes += RoundSlots::kCount * BufferPool::class_bytes(std::max<std::uint64_t>(shape.raw_bytes(), 1));
    bytes += partition.slots->reserve().bytes();
  }
  return bytes;
}

}  // namespace bps

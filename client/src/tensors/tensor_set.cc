#include "client/src/tensors/tensor_set.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "client/src/engine/scheduler_error.h"
#include "proto/wire/tensor_shape.h"

namespace bps {

Status TensorSet::check(const TensorDeclaration& declaration, const DeclaredTensor& declared,
                        std::uint64_t partition_bytes) const {
  const Partitioner partitioner = partitioner_of(declaration, partition_bytes);
  const std::uint64_t first = declared.first_partition.value;
  const std::uint64_t count = partitioner.count();
  if (declared.tensor.value >= kMaxTensorsPerJob || count > kMaxPartitionsPerJob ||
      first + count > kMaxPartitionsPerJob) {
    return scheduler_error(fmt::format("tensor {} with partitions {} to {}, beyond the limits",
                                       declared.tensor.value, first, first + count));
  }
  if (declared.owners.size() != count) {
    return scheduler_error(fmt::format("{} owners for tensor '{}', which has {} partitions",
                                       declared.owners.size(), declaration.name, count));
  }
  return {};
}

TensorState& TensorSet::add(const TensorDeclaration& declaration, const DeclaredTensor& declared,
                            std::uint64_t partition_bytes) {
  const std::uint64_t end = declared.first_partition.value + declared.owners.size();
  if (declared.tensor.value >= tensors_.size()) tensors_.resize(declared.tensor.value + 1);
  if (end > partitions_.size()) partitions_.resize(end, nullptr);
  auto& tensor = tensors_[declared.tensor.value];
  tensor = std::make_unique<TensorState>(declaration, declared, partition_bytes, rules_);
  for (Partition& partition : tensor->partitions())
    partitions_[partition.id.value] = &partition;
  return *tensor;
}

void TensorSet::forget(TensorId id) {
  ended_.push_back(std::move(tensors_[id.value]));
  forget_read();
}

void TensorSet::forget_read() {
  std::erase_if(ended_, [&](const std::unique_ptr<TensorState>& tensor) {
    bool is_read = false;
    for (const Partition& partition : tensor->partitions()) {
      is_read = is_read || partition.lending;
      if (!partition.lending) partitions_[partition.id.value] = nullptr;
    }
    return !is_read;
  });
}

Status TensorSet::begin(TensorState& tensor, Request&& request, TimePoint now) {
  if (Status status = tensor.begin(std::move(request)); !status.ok()) return status;
  ++under_way_;
  awaited_bytes_ += tensor.awaited_bytes();
  tensor.set_begun(++begun_, now);
  return {};
}

TensorState::Ended TensorSet::end(TensorState& tensor) {
  count_end(tensor);
  return tensor.end();
}

TensorState::Ended TensorSet::abort(TensorState& tensor, const Error& error) {
  count_end(tensor);
  return tensor.abort(error);
}

void TensorSet::count_end(const TensorState& tensor) {
  --under_way_;
  awaited_bytes_ -= tensor.awaited_bytes();
}

std::optional<TensorSet::UnderWay> TensorSet::under_way(TensorId id) const {
  const TensorState* tensor = find(id);
  if (tensor == nullptr || !tensor->under_way()) return std::nullopt;
  return UnderWay{id, tensor->round(), &tensor->shape().name, tensor->begun_at()};
}

std::vector<TensorSet::UnderWay> TensorSet::all_under_way() const {
  std::vector<UnderWay> out;
  if (under_way_ == 0) return out;
  for (std::uint32_t id = 0; id < tensors_.size(); ++id) {
    if (const auto one = under_way(TensorId{id})) out.push_back(*one);
  }
  return out;
}

void TensorSet::when_settled(std::function<void()> done) {
  waiters_.push_back({begun_, std::move(done)});
  call_waiters();
}

void TensorSet::call_waiters() {
  if (waiters_.empty()) return;
  std::uint64_t oldest = UINT64_MAX;
  for (const auto& tensor : tensors_) {
    if (tensor == nullptr) continue;
    if (tensor->under_way()) oldest = std::min(oldest, tensor->operation_number());
    // Only an operation that has begun since brings back a value that has all that the other one pushed.
    const bool is_value = tensor->is_async() && rules_.retain && !tensor->partitions().empty();
    if (is_value && !tensor->poisoned() && !tensor->dropped())
      oldest = std::min(oldest, tensor->last_number());
  }
  const auto over = std::stable_partition(waiters_.begin(), waiters_.end(),
                                          [&](const Waiter& waiter) { return oldest <= waiter.begun; });
  const std::vector<Waiter> ready(std::make_move_iterator(over), std::make_move_iterator(waiters_.end()));
  waiters_.erase(over, waiters_.end());
  for (const Waiter& waiter : ready)
    waiter.done();
}

}  // namespace bps

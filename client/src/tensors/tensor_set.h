// The tensors that are declared here, their partitions by number, and which operations are under way on them.
//
// Pure. Owner: DataPlane. Lives on: client loop. Limits: kMaxTensorsPerJob, kMaxPartitionsPerJob.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/src/tensors/tensor_state.h"

namespace bps {

class TensorSet {
 public:
  explicit TensorSet(const TensorState::Rules& rules) : rules_(rules) {}
  TensorSet(const TensorSet&) = delete;
  TensorSet& operator=(const TensorSet&) = delete;

  // Null: not declared here.
  TensorState* find(TensorId tensor) const {
    return tensor.value < tensors_.size() ? tensors_[tensor.value].get() : nullptr;
  }
  Partition* find(PartitionId partition) const {
    return partition.value < partitions_.size() ? partitions_[partition.value] : nullptr;
  }
  // Null also if it has another lane, or another rank of this host sends it.
  Partition* find_on(LaneIndex lane, PartitionId id) const {
    Partition* const partition = find(id);
    const bool is_here = partition != nullptr && partition->lane == lane;
    return is_here && partition->role != Partition::Role::member ? partition : nullptr;
  }
  // Not here, and perhaps forgotten: what servers say of it is ignored.
  bool may_be_forgotten(PartitionId partition) const {
    return partition.value < partitions_.size() && partitions_[partition.value] == nullptr;
  }
  // By TensorId; null: not declared here, or forgotten.
  const std::vector<std::unique_ptr<TensorState>>& all() const { return tensors_; }
  // By PartitionId; null likewise. Also those that are forgotten, and that a connection still reads.
  const std::vector<Partition*>& partitions() const { return partitions_; }

  // Of one that find() does not know: whether ids, partitions and owners fit each other and the limits. An
  // error is the scheduler's. Whether the owners exist is for the caller to check.
  Status check(const TensorDeclaration& declaration, const DeclaredTensor& declared,
               std::uint64_t partition_bytes) const;
  // After check(). The tensor lives until it is forgotten.
  TensorState& add(const TensorDeclaration& declaration, const DeclaredTensor& declared,
                   std::uint64_t partition_bytes);

  // One that is here and was dropped. What a connection reads of it stays until forget_read().
  void forget(TensorId tensor);
  // To be called when connections have let go of partitions.
  void forget_read();

  // As those of TensorState, counted.
  Status begin(TensorState& tensor, Request&& request, TimePoint now);
  TensorState::Ended end(TensorState& tensor);
  TensorState::Ended abort(TensorState& tensor, const Error& error);

  bool idle() const { return under_way_ == 0; }
  // Of messages to this rank, begun and not ended.
  std::uint64_t awaited_bytes() const { return awaited_bytes_; }
  struct UnderWay {
    TensorId tensor;
    Round round;
    const std::string* name = nullptr;  // the tensor's
    TimePoint since;
  };
  std::optional<UnderWay> under_way(TensorId tensor) const;
  std::vector<UnderWay> all_under_way() const;

  // `done` is called when all operations that are under way now have ended, and each asynchronous tensor has
  // had one that began after now: here, if there is nothing to wait for.
  void when_settled(std::function<void()> done);
  // After each end of an operation or a tensor, when its own callback has run.
  void call_waiters();
  void drop_waiters() { waiters_.clear(); }

 private:
  void count_end(const TensorState& tensor);

  struct Waiter {
    std::uint64_t begun = 0;  // those up to this one are to end
    std::function<void()> done;
  };

  const TensorState::Rules rules_;
  std::vector<std::unique_ptr<TensorState>> tensors_;
  std::vector<Partition*> partitions_;
  std::vector<std::unique_ptr<TensorState>> ended_;  // forgotten, and still read
  std::size_t under_way_ = 0;                        // operations
  std::uint64_t awaited_bytes_ = 0;
  std::uint64_t begun_ = 0;  // all so far
  std::vector<Waiter> waiters_;
};

}  // namespace bps

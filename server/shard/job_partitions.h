// The partitions of a job at one shard, by their number and by their tensor.
//
// A partition that is dropped while lanes still refer to it goes when the last of them lets go. Its number is
// remembered, so that a contribution that was under way is not taken for a broken rule. A job may drop
// tensors as long as it runs: only the last ones are remembered, at least half of kDroppedRemembered.
//
// Owner: a ShardJob. Lives on: shard loop. A partition stays where it is until it is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "proto/base/ids.h"
#include "server/aggregate/aggregator.h"
#include "server/aggregate/round_clock.h"
#include "server/shard/contributors.h"
#include "server/shard/slot_pool.h"

namespace bps {

class ShardJob;

struct JobPartition final : RoundPool::Owner {
  void on_memory() override;

  ShardJob* job = nullptr;
  std::shared_ptr<const Contributors> contributors;  // outlives the aggregator
  std::shared_ptr<SlotPool> slots;                   // likewise; of a tensor in mode slot
  std::unique_ptr<Aggregator> aggregator;
  SlotReservations reserved;
  TensorId tensor;
  std::int32_t priority = 0;
  Epoch epoch;                   // in which it came here
  std::uint32_t references = 0;  // lanes that receive into it, or hold an answer of it
  bool dropped = false;
  RoundClock clock;
  // By contributor: the round after the newest one whose answer its lane holds; 0: it holds none.
  std::vector<std::uint64_t> answering;
};

class JobPartitions {
 public:
  static constexpr std::size_t kDroppedRemembered = 1 << 18;

  // A new one, which has nothing but its tensor.
  JobPartition& add(PartitionId id, TensorId tensor);
  JobPartition* find(PartitionId id);  // null: it is not here
  // Of what is not here nothing happens.
  void drop(TensorId tensor);
  void drop(PartitionId id);
  bool was_dropped(PartitionId id) const { return dropped_.contains(id) || dropped_before_.contains(id); }
  // Frees dropped ones that nobody refers to any more.
  void reap();
  // What was reserved for those that are dropped and still referred to.
  std::uint64_t bytes_doomed() const;
  // Of which a worker may still have something to say.
  std::size_t known() const { return here_.size() + dropped_.size() + dropped_before_.size(); }

  // `visit(PartitionId, JobPartition&)` neither adds any nor drops any.
  template <class Visit>
  void visit_here(Visit visit) {
    for (auto& [id, partition] : here_)
      visit(id, partition);
  }
  // Those that are dropped and still referred to, too.
  template <class Visit>
  void visit_all(Visit visit) {
    visit_here(visit);
    for (auto& [id, partition] : doomed_)
      visit(id, partition);
  }
  template <class Visit>
  void visit_tensor(TensorId tensor, Visit visit) {
    const auto found = of_tensor_.find(tensor);
    if (found == of_tensor_.end()) return;
    for (const PartitionId id : found->second)
      visit(id, here_.at(id));
  }

 private:
  void drop_here(PartitionId id);

  std::unordered_map<PartitionId, JobPartition> here_;
  std::unordered_map<TensorId, std::vector<PartitionId>> of_tensor_;  // that are here
  // A partition may be among them more than once: declared again, dropped again.
  std::unordered_multimap<PartitionId, JobPartition> doomed_;
  std::unordered_set<PartitionId> dropped_;
  std::unordered_set<PartitionId> dropped_before_;  // the older half, forgotten at once
};

}  // namespace bps

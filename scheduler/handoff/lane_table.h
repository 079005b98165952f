// The lanes of a run: who has a connection from each worker to which shard of which server. The table only
// grows; a lane that owns nothing any more is retired. Its epoch counts the changes of who owns what, and
// with it servers and workers know which table a message is from.
//
// Owner: Job. Pure. Limits: kMaxLanesPerJob, which the caller checks for a run that opens.
#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include "scheduler/job/run.h"
#include "scheduler/tensors/tensor_catalog.h"

namespace bps {

class LaneTable {
 public:
  static constexpr Epoch kFirstEpoch{1};

  explicit LaneTable(Run& run) : run_(run) {}

  Epoch epoch() const { return epoch_; }
  void begin_epoch() { epoch_ = epoch_.next(); }
  void begin_first_epoch() { epoch_ = kFirstEpoch; }

  std::size_t size() const { return lanes_.size(); }
  const LaneTarget& operator[](std::size_t lane) const { return lanes_[lane]; }
  const std::vector<LaneTarget>& all() const { return lanes_; }
  std::vector<LaneTarget> from(std::size_t first) const;
  bool is_retired(std::size_t lane) const { return retired_[lane]; }
  std::size_t retired_count() const;

  void retire(std::size_t lane) { retired_[lane] = true; }
  void reopen(std::size_t lane) { retired_[lane] = false; }
  // To begin again.
  void clear();
  // Of a run that began before this scheduler did; none is retired.
  void restore(std::vector<LaneTarget> lanes, Epoch epoch);

  // Lanes to the servers that are there and that the run has none to, but for those in `used` and
  // `unwilling`. `is_bounded`: goes on without those for whom there are no lanes left.
  void add(const std::set<ServerId>& used, const std::set<ServerId>& unwilling, bool is_bounded);

  // The part of the job's bytes that each lane should carry. A server that waits to drain gets nothing more,
  // nor one that is `full`, unless all are so.
  std::vector<TensorCatalog::Lane> place(const std::set<ServerId>& full) const;

  // To this life of the server. `is_kept`: what it had is still there, though its lanes are retired.
  bool has_lane_to(ServerId server, Incarnation incarnation, bool is_kept) const;

 private:
  Run& run_;
  Epoch epoch_;  // 0 before the run opens
  std::vector<LaneTarget> lanes_;
  std::vector<bool> retired_;  // by lane
};

}  // namespace bps

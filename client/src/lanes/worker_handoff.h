// Partitions that get another owner (decision 0009): the lanes to the old one are closed for good, and
// nothing is sent to the new one before all workers have resumed there.
//
//   Moved -> fence (old lanes closed, partition `resuming`) -> Resume sent on each lane that gets some
//         -> Fetch: an answer that another worker lacks is sent from what is kept here
//         -> Resumed: the partition goes on in the open round
//
// A scheduler that has taken over gets a report of what the ones before have said (decision 0013).
//
// Owner: DataPlane. Lives on: client loop. Limits: a record for each moved partition of a tensor that is not
// declared here. Failure: an error of move() ends the job for this worker.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "client/src/engine/client_stats.h"
#include "client/src/group/host_ranks.h"
#include "client/src/lanes/lane_set.h"
#include "client/src/lanes/running_job.h"
#include "client/src/tensors/tensor_set.h"
#include "proto/base/log/log.h"

namespace bps {

class WorkerHandoff {
 public:
  // `retain`: answers are kept. All else outlives it.
  WorkerHandoff(RunningJob& job, LaneSet& lanes, TensorSet& tensors, const HostRanks& ranks, bool retain,
                Logger log, ClientStats& stats);
  WorkerHandoff(const WorkerHandoff&) = delete;
  WorkerHandoff& operator=(const WorkerHandoff&) = delete;

  // Returns the partitions that may be over now that no connection holds their memory: the caller settles
  // them.
  Result<std::vector<Partition*>> move(const Moved& moved);
  // Sends how far this worker is with all partitions of the lane whose owner does not know it in this
  // session.
  void resume(Lane& lane);
  // No operation comes any more: what has moved of tensors that are not declared here need not wait for it.
  void leave();
  // Nobody needs them any more.
  void forget(PartitionId first, std::size_t count);
  // Of a partition that is `resuming`.
  TensorState::Resumption on_resumed(Partition& partition, Round open);
  // Of a partition that is not `lending`: sends what is kept. on_lane_sent comes with kKeptCookie in its
  // cookie.
  void on_fetch(Lane& lane, Partition& partition, const Fetch& fetch);

  // In messages of legal size: the job, and the tensors that are declared here, as they are now. From now on
  // a Moved may have what was on its way in an earlier epoch.
  void report(const std::function<void(const Message&)>& say);

  // In the cookie of a kept answer; else it is of a contribution. With the partition's id and 1.
  static constexpr std::uint64_t kKeptCookie = std::uint64_t{1} << 63;

 private:
  bool closes(const Moved& moved, LaneIndex lane) const;
  Status check(const Moved& moved) const;
  Status check_retain(const Moved& moved) const;
  std::vector<Partition*> close_lanes(const std::vector<LaneIndex>& closed);
  void log_move(const Moved& moved, const std::vector<bool>& gets_some) const;

  RunningJob& job_;
  LaneSet& lanes_;
  TensorSet& tensors_;
  const HostRanks& ranks_;
  const bool retain_;
  Logger log_;
  ClientStats& stats_;
  std::map<PartitionId, LaneIndex> undeclared_;  // moved, of tensors that are not declared here
  bool leaving_ = false;
};

}  // namespace bps

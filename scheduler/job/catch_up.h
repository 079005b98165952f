// What a node has missed that takes its connection to the scheduler up again (decision 0013): it reports what
// it was told, and gets the rest. A worker that comes back while partitions move gets it when they have
// moved.
//
// Owner: Job. Pure. A report that does not fit the run is an error, and the node that sent it is dropped.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "scheduler/handoff/lane_table.h"
#include "scheduler/job/losses.h"
#include "scheduler/job/roster.h"
#include "scheduler/job/run.h"
#include "scheduler/report.h"
#include "scheduler/tensors/tensor_relay.h"

namespace bps {

class CatchUp {
 public:
  CatchUp(Run& run, const LaneTable& lanes, TensorRelay& tensors, const Losses& losses)
      : run_(run), lanes_(lanes), tensors_(tensors), losses_(losses) {}

  // Nothing of a report is used before it fits what is known here; `is_running`: of lanes and tensors, too.
  Status check(const Worker& worker, const WorkerReport& report, bool is_running) const;

  // To a worker that is there: the run starts.
  void start(const Worker& worker);
  // To a worker that had not heard of the start: what it would have had then. The rest is news.
  JobStart start_late(const Worker& worker);
  void send(const Worker& worker, const WorkerReport& report) const;
  // It knows only this, and hears the rest with the others, from tell_moved().
  void put_off(Rank rank, WorkerReport report) { behind_.insert_or_assign(rank, std::move(report)); }
  void put_off(std::map<Rank, WorkerReport> reports) { behind_ = std::move(reports); }
  // It is gone again.
  void forget(Rank rank) { behind_.erase(rank); }
  // To all workers that are there.
  void tell_moved(const Moved& moved, const std::vector<PartitionMove>& moves);

  // A server: who has left.
  void compare(ServerId server, const RunReport& report) const;
  // What it is not to have.
  void drop_unwanted(ServerId server, const RunReport& report) const;

 private:
  void send(Moved moved, const std::vector<PartitionMove>& moves, PeerId peer) const;
  JobStart start_of(const Worker& worker, Epoch epoch);

  Run& run_;
  const LaneTable& lanes_;
  TensorRelay& tensors_;
  const Losses& losses_;
  std::optional<Roster> roster_;         // once the run has started
  std::map<Rank, WorkerReport> behind_;  // while partitions move
};

}  // namespace bps

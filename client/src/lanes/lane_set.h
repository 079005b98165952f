// The lanes of a job: which loops they live on, what may be under way on them, and which of them are there.
//
// The problem: lanes of one data thread share one queue and one part of the credit, so that no thread sends
// for another; how much credit there is and how many threads is one decision, made when the job starts.
//
// Owner: DataPlane. Lives on: client loop. Limits: see ContributionQueue (what is under way) and Lane.
// Failure: a broken lane opens itself again; a server that is away for long is reported to the scheduler
// (LinkWatch).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "client/src/engine/client_stats.h"
#include "client/src/lanes/data_threads.h"
#include "client/src/lanes/lane.h"
#include "client/src/lanes/lane_routes.h"
#include "client/src/lanes/link_watch.h"
#include "client/src/lanes/running_job.h"
#include "client/src/runtime/client_config.h"
#include "client/src/tensors/contribution_queue.h"
#include "client/src/tensors/tensor_state.h"

namespace bps {

class LaneSet {
 public:
  // A server cannot be reached, or can be again: for the scheduler.
  using ReportLink = std::function<void(const LaneLost&)>;

  // `make_loops`: null: all lanes on `loop`. `config` and `stats` outlive it.
  LaneSet(EventLoop& loop, LaneRoutes::Transports transports, MakeLaneLoops make_loops, Lane::Owner& owner,
          ReportLink report_link, const ClientConfig& config, Logger log, ClientStats& stats);
  ~LaneSet();  // closes all
  LaneSet(const LaneSet&) = delete;
  LaneSet& operator=(const LaneSet&) = delete;

  // Opens all lanes of the job. Once. `ticket`: what opens them; null without a key. `group_size`: ranks of
  // this host that sum first.
  Status start(const RunningJob& job, Incarnation incarnation, const SharedKey& ticket,
               std::uint32_t group_size);
  // They are not opened yet. Those of `closing` are about to be closed.
  Status add(const std::vector<LaneTarget>& targets, const std::vector<LaneIndex>& closing = {});
  // For good. What was under way on it does not count any more.
  void close(LaneIndex lane);
  // All, for good. Nothing is reported of them any more.
  void close();
  // For the hello of the next sessions.
  void set_epoch(Epoch epoch);
  void set_generation(Generation generation);

  std::size_t size() const { return lanes_.size(); }
  Lane& operator[](LaneIndex lane) const { return *lanes_[lane.value]; }
  const std::vector<std::unique_ptr<Lane>>& all() const { return lanes_; }
  bool closed(LaneIndex lane) const { return lane.value < lanes_.size() && lanes_[lane.value]->closed(); }
  const LaneRoutes& routes() const { return routes_; }

  ContributionQueue& queue_of(LaneIndex lane) { return loops_[lane.value % loops_.size()].queue; }
  // Calls `act` for the queue of each loop.
  template <typename Act>
  void each_queue(const Act& act) {
    for (DataLoop& loop : loops_)
      act(loop.queue);
  }

  // What it may send without being asked.
  void allow(LaneIndex lane, std::uint64_t bytes) { allowances_[lane.value].limit = bytes; }
  // Takes the partition's bytes of what its lane may send, if it needs any. False: a request to send goes
  // first.
  bool may_send(Partition& partition);
  void give_back(Partition& partition);

  // From the lane.
  void on_welcomed(const Lane& lane);
  void on_broken(const Lane& lane);

  std::vector<LaneIndex> closed_lanes() const;
  // Servers that cannot be reached now.
  std::vector<LaneLost> lost_links() const { return links_.again(loop_.now()); }
  void count();

 private:
  struct DataLoop {
    LaneLoop loop;
    ContributionQueue queue;
    std::uint64_t spare_credit = 0;  // beside one partition
  };
  // Payload bytes that were sent on a lane eagerly and are not answered.
  struct Allowance {
    std::uint64_t limit = UINT64_MAX;  // until the server says one
    std::uint64_t used = 0;
  };

  void start_loops(const JobStart& job, std::uint32_t group_size);
  void make_loops(const JobStart& job, DataThreadsFacts facts);
  void share_credit(const JobStart& job, std::uint64_t credit);
  void report_links();

  EventLoop& loop_;
  LaneRoutes routes_;
  const MakeLaneLoops make_loops_;
  Lane::Owner& owner_;
  const ReportLink report_link_;
  const ClientConfig& config_;
  Logger log_;
  ClientStats& stats_;
  HelloLane hello_;             // all but what is a lane's own
  std::deque<DataLoop> loops_;  // lane i on loop i modulo their number
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Allowance> allowances_;  // by lane
  LinkWatch links_;
  TimerId links_timer_;
};

}  // namespace bps

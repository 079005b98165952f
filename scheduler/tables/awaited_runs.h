// Runs of the schedulers before, of which no worker has come back yet (decision 0013): those that the state
// names, and those that servers have brought back. Whose job such a run is belongs to it alone until its time
// is over.
//
// The time is that of all schedulers together, as the state keeps it: one that is started again and again
// does not begin anew each time. Each of them gives a run 1 s at least, as its nodes may have been about to
// come.
//
// Owner: the core's Tables. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "proto/base/loop/event_loop.h"
#include "scheduler/job/job.h"
#include "scheduler/report.h"
#include "scheduler/server_table.h"
#include "scheduler/state.h"

namespace bps {

class AwaitedRuns {
 public:
  using Runs = std::map<JobRun, SchedulerState::Run>;

  // `patience`: how long their nodes have to come.
  AwaitedRuns(const Runs& named, Duration patience, ServerTable& servers, Outbox& outbox);
  AwaitedRuns(const AwaitedRuns&) = delete;
  AwaitedRuns& operator=(const AwaitedRuns&) = delete;

  // The server reports these. It counts as used by them until they are clear.
  void add(TimePoint now, ServerId server, std::map<JobRun, RunReport> runs);
  // The server is away again.
  void forget(ServerId server) { brought_.erase(server); }
  // A worker of the run has come back: its servers attach.
  void claim(JobRun run, Job& job);

  // A run of the job is awaited.
  bool has_job(const std::string& job) const;
  // The run is awaited, for another job.
  bool is_of_other(JobRun run, const std::string& job) const;
  bool has_brought() const { return !brought_.empty(); }

  // Nobody is awaited any more.
  void clear();

  // True: some are given up.
  bool expire(TimePoint now);

  // For the next scheduler, as of the last expire().
  Runs runs() const;
  // How often they have changed, also by the time that has passed.
  std::uint64_t changes() const { return changes_; }

  static constexpr Duration kLeast = std::chrono::seconds(1);
  static constexpr Duration kNoteEvery = std::chrono::milliseconds(500);

 private:
  struct Awaited {
    std::string job;
    Duration waited;  // before `since`
    std::optional<TimePoint> since;
  };
  void give_up(JobRun run, const Awaited& awaited);

  ServerTable& servers_;
  Outbox& outbox_;
  Duration patience_;
  std::map<JobRun, Awaited> runs_;
  std::map<ServerId, std::map<JobRun, RunReport>> brought_;  // of these
  TimePoint now_;                                            // the last expire()
  TimePoint noted_at_;  // when the time that has passed was last a change
  std::uint64_t changes_ = 0;
};

}  // namespace bps

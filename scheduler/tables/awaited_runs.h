// Runs of the scheduler before, of which no worker has come back yet (decision 0013): those that its state
// names, and those that servers have brought back. Whose job such a run is belongs to it alone until its time
// is over.
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

namespace bps {

class AwaitedRuns {
 public:
  // `patience`: how long their nodes have to come.
  AwaitedRuns(std::map<JobRun, std::string> named, Duration patience, ServerTable& servers, Outbox& outbox)
      : servers_(servers), outbox_(outbox), patience_(patience), named_(std::move(named)) {}
  AwaitedRuns(const AwaitedRuns&) = delete;
  AwaitedRuns& operator=(const AwaitedRuns&) = delete;

  // The server reports these, and nobody else does. It counts as used by them until they are clear.
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

  // True: some are given up.
  bool expire(TimePoint now);

  // For the next scheduler.
  const std::map<JobRun, std::string>& named() const { return named_; }
  // How often expire() has changed them.
  std::uint64_t changes() const { return changes_; }

 private:
  struct Brought {
    TimePoint until;
    std::map<JobRun, RunReport> runs;
  };
  bool expire_brought(TimePoint now);
  bool expire_named(TimePoint now);

  ServerTable& servers_;
  Outbox& outbox_;
  Duration patience_;
  std::map<JobRun, std::string> named_;  // names of jobs
  std::optional<TimePoint> named_until_;
  std::map<ServerId, Brought> brought_;
  std::uint64_t changes_ = 0;
};

}  // namespace bps

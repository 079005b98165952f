// The runs that exist, by number and by the name of their job; which of them recover; and why the last ones
// ended, for latecomers.
//
// Owner: the core's Tables. Pure. Limits: kMaxEnded; CoreOptions::max_jobs is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "scheduler/actions.h"
#include "scheduler/job/job.h"
#include "scheduler/server_table.h"

namespace bps {

class Runs {
 public:
  static constexpr std::size_t kMaxEnded = 256;

  struct Ended {
    JobRun run;
    std::string job;
    Error error;
  };

  Runs(const JobOptions& options, ServerTable& servers, Outbox& outbox)
      : options_(options), servers_(servers), outbox_(outbox) {}
  Runs(const Runs&) = delete;
  Runs& operator=(const Runs&) = delete;

  // A new one.
  Job& begin(TimePoint now, const HelloWorker& first, JobRun run, const Term& term);
  // One that began before this scheduler did.
  Job& recover(TimePoint now, const HelloWorker& first, const Term& term, TimePoint deadline);
  const std::set<JobRun>& recovering() const { return recovering_; }
  void has_recovered(JobRun run) { recovering_.erase(run); }

  // nullptr: there is none, or none any more.
  Job* find(JobRun run) const;
  Job* of_name(const std::string& job) const;
  Job& at(JobRun run) const { return *jobs_.at(run); }
  const std::map<JobRun, std::unique_ptr<Job>>& all() const { return jobs_; }
  std::size_t size() const { return jobs_.size(); }
  // Something may have changed that a run waits for.
  void maybe_start_all();

  // Fails a run that is not the job's that it names: nobody may come back to hear how it ended.
  void disown(Job& job, const Error& error);
  // It has ended.
  void forget(JobRun run);
  // nullptr: it has not ended, or too long ago.
  const Ended* ended(JobRun run) const;

  // How often the set of runs has changed.
  std::uint64_t changes() const { return changes_; }

 private:
  Job& insert(JobRun run, std::unique_ptr<Job> job);

  const JobOptions& options_;
  ServerTable& servers_;
  Outbox& outbox_;
  std::map<JobRun, std::unique_ptr<Job>> jobs_;
  std::map<std::string, JobRun> of_name_;
  std::set<JobRun> recovering_;
  std::set<JobRun> disowned_;
  std::deque<Ended> ended_;
  std::uint64_t changes_ = 0;
};

}  // namespace bps

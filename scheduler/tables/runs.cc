#include "scheduler/tables/runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "proto/base/config/units.h"

namespace bps {

Job& Runs::begin(TimePoint now, const HelloWorker& first, JobRun run, const Term& term) {
  outbox_.log(LogLevel::info, fmt::format("job {} created, run {:016x}: {}", first.job, run.value,
                                          counted(first.world_size, "worker")));
  return insert(run, std::make_unique<Job>(first, run, term, now, servers_, outbox_, options_));
}

Job& Runs::recover(TimePoint now, const HelloWorker& first, const Term& term, TimePoint deadline) {
  const JobRun run = first.job_run;
  auto job = std::make_unique<Job>(first, run, term, now, servers_, outbox_, options_);
  job->recover_until(deadline);
  recovering_.insert(run);
  return insert(run, std::move(job));
}

Job& Runs::insert(JobRun run, std::unique_ptr<Job> job) {
  of_name_[job->name()] = run;
  ++changes_;
  return *jobs_.emplace(run, std::move(job)).first->second;
}

Job* Runs::find(JobRun run) const {
  const auto it = jobs_.find(run);
  return it == jobs_.end() ? nullptr : it->second.get();
}

Job* Runs::of_name(const std::string& job) const {
  const auto it = of_name_.find(job);
  return it == of_name_.end() ? nullptr : jobs_.at(it->second).get();
}

void Runs::maybe_start_all() {
  for (const auto& [run, job] : jobs_)
    job->maybe_start();
}

void Runs::disown(Job& job, const Error& error) {
  disowned_.insert(job.run());
  job.disown(error);
}

void Runs::forget(JobRun run) {
  const auto it = jobs_.find(run);
  const Job& job = *it->second;
  if (disowned_.erase(run) == 0) ended_.push_back({run, job.name(), job.end_error()});
  if (ended_.size() > kMaxEnded) ended_.pop_front();
  ++changes_;
  recovering_.erase(run);
  of_name_.erase(job.name());
  jobs_.erase(it);
}

const Runs::Ended* Runs::ended(JobRun run) const {
  const auto it =
      std::find_if(ended_.begin(), ended_.end(), [run](const Ended& ended) { return ended.run == run; });
  return it == ended_.end() ? nullptr : &*it;
}

}  // namespace bps

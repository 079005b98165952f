#include "scheduler/tables/awaited_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "proto/base/config/units.h"
#include "scheduler/text.h"

namespace bps {

AwaitedRuns::AwaitedRuns(const Runs& named, Duration patience, ServerTable& servers, Outbox& outbox)
    : servers_(servers), outbox_(outbox), patience_(patience) {
  for (const auto& [run, known] : named)
    runs_.emplace(run, Awaited{known.job, known.waited, std::nullopt});
}

void AwaitedRuns::add(TimePoint now, ServerId server, std::map<JobRun, RunReport> runs) {
  if (runs.empty()) return;
  for (const auto& [run, report] : runs) {
    if (runs_.emplace(run, Awaited{report.open.job, {}, now}).second) ++changes_;
  }
  brought_[server] = std::move(runs);
}

void AwaitedRuns::claim(JobRun run, Job& job) {
  bool is_clear = true;
  for (auto next = brought_.begin(); next != brought_.end();) {
    const auto here = next++;
    auto& runs = here->second;
    const auto report = runs.find(run);
    if (report == runs.end()) continue;
    if (!job.server_attached(here->first, &report->second).ok()) {
      is_clear = false;
      continue;
    }
    runs.erase(report);
    if (runs.empty()) brought_.erase(here);
  }
  if (is_clear) runs_.erase(run);
}

void AwaitedRuns::clear() {
  if (!runs_.empty()) ++changes_;
  runs_.clear();
  brought_.clear();
}

bool AwaitedRuns::has_job(const std::string& job) const {
  return std::any_of(runs_.begin(), runs_.end(), [&](const auto& entry) { return entry.second.job == job; });
}

bool AwaitedRuns::is_of_other(JobRun run, const std::string& job) const {
  const auto awaited = runs_.find(run);
  if (awaited != runs_.end() && awaited->second.job != job) return true;
  return std::any_of(brought_.begin(), brought_.end(), [&](const auto& entry) {
    const auto report = entry.second.find(run);
    return report != entry.second.end() && report->second.open.job != job;
  });
}

bool AwaitedRuns::expire(TimePoint now) {
  now_ = now;
  const auto unseen = std::count_if(runs_.begin(), runs_.end(),
                                    [](const auto& entry) { return !entry.second.since.has_value(); });
  if (unseen != 0) {
    outbox_.log(LogLevel::info, fmt::format("waits for the workers of {} that the scheduler before had",
                                            counted(static_cast<std::uint64_t>(unseen), "job")));
  }
  bool any = false;
  for (auto next = runs_.begin(); next != runs_.end();) {
    const auto here = next++;
    Awaited& awaited = here->second;
    if (!awaited.since) awaited.since = now;
    if (now - *awaited.since < std::max(patience_ - awaited.waited, std::min(kLeast, patience_))) continue;
    give_up(here->first, awaited);
    runs_.erase(here);
    any = true;
  }
  if (any || (!runs_.empty() && now - noted_at_ >= kNoteEvery)) {
    noted_at_ = now;
    ++changes_;
  }
  return any;
}

void AwaitedRuns::give_up(JobRun run, const Awaited& awaited) {
  outbox_.log(LogLevel::warn,
              fmt::format("job {}, run {:016x}: none of its workers has come back", awaited.job, run.value));
  for (auto next = brought_.begin(); next != brought_.end();) {
    const auto here = next++;
    if (here->second.erase(run) == 0) continue;
    servers_.send(here->first, JobEnded{run, make_error(ErrorCode::peer_lost,
                                                        "none of its workers has come back to the scheduler",
                                                        kRestartAdvice)});
    servers_.release(here->first, run);
    if (here->second.empty()) brought_.erase(here);
  }
}

AwaitedRuns::Runs AwaitedRuns::runs() const {
  Runs out;
  for (const auto& [run, awaited] : runs_) {
    const Duration here = awaited.since ? std::max(Duration{}, now_ - *awaited.since) : Duration{};
    out.emplace(run, SchedulerState::Run{awaited.job, awaited.waited + here});
  }
  return out;
}

}  // namespace bps

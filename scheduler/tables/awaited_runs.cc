#include "scheduler/tables/awaited_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "proto/base/config/units.h"
#include "scheduler/text.h"

namespace bps {

void AwaitedRuns::add(TimePoint now, ServerId server, std::map<JobRun, RunReport> runs) {
  if (!runs.empty()) brought_[server] = Brought{now + patience_, std::move(runs)};
}

void AwaitedRuns::claim(JobRun run, Job& job) {
  named_.erase(run);
  for (auto next = brought_.begin(); next != brought_.end();) {
    const auto here = next++;
    auto& runs = here->second.runs;
    const auto report = runs.find(run);
    if (report == runs.end() || !job.server_attached(here->first, &report->second).ok()) continue;
    runs.erase(report);
    if (runs.empty()) brought_.erase(here);
  }
}

bool AwaitedRuns::has_job(const std::string& job) const {
  const auto is_named = [&](const auto& entry) { return entry.second == job; };
  if (std::any_of(named_.begin(), named_.end(), is_named)) return true;
  for (const auto& [server, brought] : brought_) {
    for (const auto& [run, report] : brought.runs) {
      if (report.open.job == job) return true;
    }
  }
  return false;
}

bool AwaitedRuns::is_of_other(JobRun run, const std::string& job) const {
  const auto named = named_.find(run);
  if (named != named_.end() && named->second != job) return true;
  return std::any_of(brought_.begin(), brought_.end(), [&](const auto& entry) {
    const auto report = entry.second.runs.find(run);
    return report != entry.second.runs.end() && report->second.open.job != job;
  });
}

bool AwaitedRuns::expire(TimePoint now) {
  const bool brought = expire_brought(now);
  const bool named = expire_named(now);
  return brought || named;
}

bool AwaitedRuns::expire_brought(TimePoint now) {
  bool any = false;
  for (auto it = brought_.begin(); it != brought_.end();) {
    if (now < it->second.until) {
      ++it;
      continue;
    }
    for (const auto& [run, report] : it->second.runs) {
      servers_.send(it->first, JobEnded{run, make_error(ErrorCode::peer_lost,
                                                        "none of its workers has come back to the scheduler",
                                                        kRestartAdvice)});
      servers_.release(it->first, run);
    }
    it = brought_.erase(it);
    any = true;
  }
  return any;
}

bool AwaitedRuns::expire_named(TimePoint now) {
  if (named_.empty()) return false;
  if (!named_until_) {
    outbox_.log(LogLevel::info, fmt::format("waits for the workers of {} that the scheduler before had",
                                            counted(named_.size(), "job")));
    named_until_ = now + patience_;
  }
  if (now < *named_until_) return false;
  for (const auto& [run, name] : std::exchange(named_, {})) {
    outbox_.log(LogLevel::warn,
                fmt::format("job {}, run {:016x}: none of its workers has come back", name, run.value));
  }
  ++changes_;
  return true;
}

}  // namespace bps

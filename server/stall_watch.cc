#include "server/stall_watch.h"

#include <fmt/core.h>

#include "proto/wire/wait_text.h"

namespace bps {

void StallWatch::open(const OpenJob& job) {
  Job& entry = jobs_[job.job_run];
  entry.name = job.job;
  for (const Member& member : job.members)
    entry.hosts[member.rank] = member.host;
}

std::vector<std::string> StallWatch::look(JobRun run, const OpenRounds& open, const TensorNames& names) {
  std::vector<std::string> lines;
  const auto found = jobs_.find(run);
  if (found == jobs_.end()) return lines;
  Job& job = found->second;
  std::map<std::pair<TensorId, RoundStage>, Round> told;
  std::uint32_t more = open.more;
  for (const OpenRound& round : open.rounds) {
    const std::pair key(round.tensor, round.stage);
    const auto before = job.told.find(key);
    const bool known =
        before != job.told.end() && (round.stage == RoundStage::resume || before->second == round.round);
    if (known || lines.size() < kMaxLines) told[key] = round.round;
    if (known) continue;
    if (lines.size() < kMaxLines) {
      lines.push_back(line(job, round, names));
    } else {
      ++more;
    }
  }
  job.told = std::move(told);
  if (!lines.empty() && more > 0) lines.back() += fmt::format(" (and {} more tensors)", more);
  return lines;
}

std::string StallWatch::line(const Job& job, const OpenRound& round, const TensorNames& names) const {
  const auto name = names.find(round.tensor);
  std::string missing;
  for (std::size_t i = 0; i < round.missing.size(); ++i) {
    const auto host = job.hosts.find(round.missing[i]);
    const bool last = i + 1 == round.missing.size() && round.absent == round.missing.size();
    missing += i == 0 ? (round.stage == RoundStage::store ? "" : ", missing ") : last ? " and " : ", ";
    missing += fmt::format("rank {}", round.missing[i].value);
    if (host != job.hosts.end() && !host->second.empty()) missing += " (host " + host->second + ")";
  }
  if (round.absent > round.missing.size())
    missing += fmt::format(" and {} more", round.absent - round.missing.size());
  const std::string tensor =
      name != names.end() ? name->second : fmt::format("tensor {}", round.tensor.value);
  const bool is_resuming = round.stage == RoundStage::resume;
  const std::string what = is_resuming ? tensor + ", which has moved here, waits"
                                       : fmt::format("round {} of {} waits", round.round.value, tensor);
  if (round.stage == RoundStage::store) {
    return fmt::format("job '{}': {} for {}: it is complete, and not over at {}", job.name, what,
                       milliseconds_text(round.age_ms), missing);
  }
  return fmt::format("job '{}': {} for {}: {} of {} {}{}", job.name, what, milliseconds_text(round.age_ms),
                     round.expected - round.absent, round.expected, is_resuming ? "resumed" : "pushed",
                     missing);
}

}  // namespace bps

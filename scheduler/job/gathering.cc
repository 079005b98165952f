#include "scheduler/job/gathering.h"

#include <fmt/format.h>

#include "proto/wire/limits.h"
#include "scheduler/text.h"

namespace bps {

std::optional<Error> Gathering::tick(TimePoint now) {
  const Worker* const impatient = run_.membership.least_patient();
  if (impatient != nullptr && now >= impatient->join_deadline) return join_error(now, *impatient);
  if (auto error = lack_of_servers(now)) return error;
  if (auto error = disagreement(now)) return error;
  if (run_.phase == JobPhase::gathering && now >= next_progress_) {
    next_progress_ = now + options_.join_progress_interval;
    tell_progress();
  }
  return std::nullopt;
}

std::optional<Error> Gathering::lack_of_servers(TimePoint now) {
  if (run_.phase != JobPhase::gathering || run_.servers.usable_count() != 0) {
    without_server_since_.reset();
    return std::nullopt;
  }
  if (!without_server_since_) without_server_since_ = now;
  if (options_.server_wait == Duration{} || now - *without_server_since_ < options_.server_wait)
    return std::nullopt;
  return make_error(ErrorCode::peer_lost,
                    fmt::format("job {}: {}; no server has been there for {}", run_.name(), counts(),
                                seconds_text(now - *without_server_since_)),
                    "start the job again when a server is there");
}

std::optional<Error> Gathering::disagreement(TimePoint now) const {
  if (run_.phase != JobPhase::gathering) return std::nullopt;
  const auto& workers = run_.membership.workers();
  for (const auto& [rank, refusal] : refused_) {
    const bool is_missing = rank.value < run_.membership.world_size() && workers.count(rank) == 0;
    if (refusal.disagrees && is_missing && now - refusal.at >= kDisagreementPatience) return refusal.error;
  }
  return std::nullopt;
}

void Gathering::tell_progress() const {
  JoinProgress progress;
  progress.joined = static_cast<std::uint32_t>(run_.membership.workers().size());
  progress.missing = run_.membership.missing();
  if (progress.missing.size() > kMaxMissingNamed) progress.missing.resize(kMaxMissingNamed);
  progress.servers = run_.servers.usable_count();
  run_.broadcast(std::move(progress));
}

std::string Gathering::counts() const {
  return fmt::format("{} of {} workers joined", run_.membership.workers().size(),
                     run_.membership.world_size());
}

Error Gathering::join_error(TimePoint now, const Worker& impatient) const {
  const std::string in = seconds_text(now - run_.membership.created_at());
  const std::string its_time = seconds_text(impatient.join_timeout);
  const std::string why =
      its_time == in ? ""
                     : fmt::format("; {} waited its {}", run_.membership.name_of(impatient.rank), its_time);
  if (run_.phase == JobPhase::opening) {
    const ServerRecord* server = opening_.empty() ? nullptr : run_.servers.find(opening_.begin()->second);
    return make_error(ErrorCode::deadline,
                      fmt::format("job {} could not start in {}: {} has not confirmed it", run_.name(), in,
                                  server != nullptr ? to_string(*server) : "a server") +
                          why,
                      "look at that server's log, then start the job again");
  }
  std::string text = fmt::format("job {}: {} in {}", run_.name(), counts(), in);
  std::string advice;
  const auto missing = run_.membership.missing();
  if (!missing.empty()) {
    text += "; missing " + ranks_text(missing);
    advice = "see why they did not start, or raise the join timeout";
  }
  if (const auto suspected = run_.membership.suspected(); !suspected.empty()) {
    text += fmt::format("; {} lost {}", ranks_text(suspected),
                        suspected.size() == 1 ? "its connection" : "their connections");
    if (advice.empty()) advice = "start the job again";
  }
  if (run_.servers.usable_count() == 0) {
    text += "; no server has registered";
    advice = fmt::format("start at least one: {}", options_.server_command);
  }
  if (!missing.empty() && !refused_.empty()) {
    // Starting again would end the same way.
    const auto& [rank, refusal] = *refused_.begin();
    text += fmt::format("; a worker that came as rank {} was refused: {}", rank.value, refusal.error.message);
    return make_error(refusal.error.code, text + why, refusal.error.advice);
  }
  return make_error(ErrorCode::deadline, text + why, std::move(advice));
}

}  // namespace bps

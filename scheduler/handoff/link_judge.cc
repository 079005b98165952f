#include "scheduler/handoff/link_judge.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/wire/limits.h"
#include "proto/wire/timing.h"
#include "scheduler/text.h"

namespace bps {
namespace {

constexpr std::uint64_t kLongestAgeMs = 24ull * 3600 * 1000;  // what a worker may say
constexpr std::size_t kNamed = 4;                             // ends in one text

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamed); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  return names.size() > kNamed ? fmt::format("{} and {} more", text, names.size() - kNamed) : text;
}

// "link to server 1 (...) is cut"
std::string links_to(const std::vector<std::string>& names) {
  return fmt::format("{} to {} {} cut", names.size() == 1 ? "link" : "links", list_of(names),
                     names.size() == 1 ? "is" : "are");
}

}  // namespace

void LinkJudge::note(TimePoint now, Rank rank, const ServerRecord& server, const LaneLost& said) {
  const std::string link = fmt::format("job {}: the link of {} to {}", run_.name(),
                                       run_.membership.name_of(rank), to_string(server));
  const Link key(rank, said.server);
  if (!said.lost) {
    if (cuts_.erase(key) != 0) run_.outbox.log(LogLevel::info, link + " is there again");
    return;
  }
  const TimePoint since = now - std::chrono::milliseconds(std::min(said.age_ms, kLongestAgeMs));
  if (!cuts_.insert_or_assign(key, Cut{since, said.incarnation}).second) return;
  run_.outbox.log(LogLevel::warn, fmt::format("{} is cut: {}", link, said.reason));
  // The others have as long to notice, or to find it there again.
  if (!judgement_) judgement_ = now + kHeartbeatTimeout;
}

void LinkJudge::prune(const HasLane& has_lane) {
  std::erase_if(cuts_, [&](const auto& entry) {
    const Worker* const worker = run_.membership.find(entry.first.first);
    const bool is_there = worker != nullptr && !worker->gone && worker->peer.value != 0;
    return !is_there || !has_lane(entry.first.second, entry.second.server);
  });
  if (cuts_.empty()) judgement_.reset();
}

std::set<LinkJudge::Link> LinkJudge::take_due(TimePoint now, const HasLane& has_lane) {
  if (!judgement_ || now < *judgement_) return {};
  prune(has_lane);
  std::set<Link> cut;
  for (const auto& [link, known] : cuts_) {
    const ServerRecord* const server = run_.servers.find(link.second);
    if (server == nullptr || server->peer.value == 0) return {};
    cut.insert(link);
  }
  cuts_.clear();
  judgement_.reset();
  return cut;
}

void LinkJudge::cut_off(const std::vector<Rank>& workers, const std::set<Link>& cut) const {
  for (const Rank rank : workers) {
    std::vector<std::string> ends;
    for (const auto& [worker, server] : cut) {
      if (worker == rank) ends.push_back(to_string(*run_.servers.find(server)));
    }
    const std::string links = links_to(ends);
    run_.outbox.cut_off({run_.membership.find(rank)->incarnation, "its " + links, "your " + links,
                         "look at the network between the two; start the job again"});
  }
}

std::string LinkJudge::reason_to_give_up(const std::vector<ServerId>& servers,
                                         const std::set<Link>& cut) const {
  std::string reason;
  for (const ServerId id : servers) {
    std::vector<std::string> ends;
    for (const auto& [worker, server] : cut) {
      if (server == id) ends.push_back(run_.membership.name_of(worker));
    }
    reason += fmt::format("{}{} of job {} is given up: its {}", reason.empty() ? "" : "; ",
                          to_string(*run_.servers.find(id)), run_.name(), links_to(ends));
  }
  return reason;
}

std::vector<CutLink> LinkJudge::list(TimePoint now) const {
  std::vector<CutLink> out;
  for (const auto& [link, cut] : cuts_) {
    if (out.size() < kMaxMissingNamed)
      out.push_back({link.first, link.second, milliseconds_of(now - cut.since)});
  }
  return out;
}

}  // namespace bps

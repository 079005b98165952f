// Links between workers and servers of a running job that are cut while both ends live (decision 0016).
#include <fmt/format.h>

#include <algorithm>

#include "proto/wire/limits.h"
#include "proto/wire/timing.h"
#include "scheduler/job/job.h"
#include "scheduler/job/link_blame.h"
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

// Another life of the server is another server. One that drains may have to stay.
bool Job::has_lane_to(ServerId server, Incarnation incarnation) const {
  const bool drains = move_ && move_->drained.count(server) != 0 && unwilling_.count(server) == 0;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const bool is_open = !retired_[i] || drains;
    if (lanes_[i].server == server && lanes_[i].incarnation == incarnation && is_open) return true;
  }
  return false;
}

Status Job::lane_lost(TimePoint now, Rank rank, const LaneLost& said) {
  if (ended()) return {};
  if (phase_ != Phase::running) return make_error(ErrorCode::protocol, "LaneLost before the job has started");
  const ServerRecord* const server = run_.servers.find(said.server);
  // It may have gone meanwhile, or its partitions are on their way.
  if (server == nullptr || server->incarnation != said.incarnation ||
      !has_lane_to(said.server, said.incarnation)) {
    return {};
  }
  const std::string link =
      fmt::format("job {}: the link of {} to {}", name(), run_.membership.name_of(rank), to_string(*server));
  const std::pair key(rank, said.server);
  if (!said.lost) {
    if (cuts_.erase(key) != 0) run_.outbox.log(LogLevel::info, link + " is there again");
    return {};
  }
  const TimePoint since = now - std::chrono::milliseconds(std::min(said.age_ms, kLongestAgeMs));
  if (!cuts_.insert_or_assign(key, Cut{since, said.incarnation}).second) return {};
  run_.outbox.log(LogLevel::warn, fmt::format("{} is cut: {}", link, said.reason));
  // The others have as long to notice, or to find it there again.
  if (!judgement_) judgement_ = now + kHeartbeatTimeout;
  return {};
}

// Of ends that are still there.
void Job::prune_cuts() {
  std::erase_if(cuts_, [&](const auto& entry) {
    const Worker* const worker = run_.membership.find(entry.first.first);
    const bool is_there = worker != nullptr && !worker->gone && worker->peer.value != 0;
    return !is_there || !has_lane_to(entry.first.second, entry.second.server);
  });
  if (cuts_.empty()) judgement_.reset();
}

void Job::judge_links(TimePoint now) {
  if (!judgement_ || now < *judgement_ || phase_ != Phase::running) return;
  prune_cuts();
  CutLinks links;
  for (const auto& [link, cut] : cuts_) {
    const ServerRecord* const server = run_.servers.find(link.second);
    if (server == nullptr || server->peer.value == 0) return;  // whether it is dead will be clear soon
    links.cut.insert(link);
  }
  if (links.cut.empty()) return;
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (!worker.gone) links.workers.insert(rank);
  }
  for (const auto& [id, server] : run_.servers.all()) {
    const bool is_used = used_.count(id) != 0 && has_lane_to(id, server.incarnation);
    if (is_used) links.servers.emplace(id, !obstacle(id));
    if (!is_used && server.usable() && used_.count(id) == 0 && unwilling_.count(id) == 0) ++links.spares;
  }
  cuts_.clear();
  judgement_.reset();
  carry_out(blame_for(links), links.cut);
}

void Job::carry_out(const Blame& blame, const std::set<std::pair<Rank, ServerId>>& cut) {
  for (const Rank rank : blame.workers) {
    std::vector<std::string> ends;
    for (const auto& [worker, server] : cut) {
      if (worker == rank) ends.push_back(to_string(*run_.servers.find(server)));
    }
    const std::string links = links_to(ends);
    run_.outbox.cut_off({run_.membership.find(rank)->incarnation, "its " + links, "your " + links,
                         "look at the network between the two; start the job again"});
  }
  // The loss of a worker may be the end of the job.
  const bool ends = std::any_of(blame.workers.begin(), blame.workers.end(), [&](Rank rank) {
    return !run_.membership.find(rank)->left && !can_shrink(rank);
  });
  if (ends || blame.servers.empty()) return;
  std::string reason;
  for (const ServerId id : blame.servers) {
    std::vector<std::string> ends_of_it;
    for (const auto& [worker, server] : cut) {
      if (server == id) ends_of_it.push_back(run_.membership.name_of(worker));
    }
    reason += fmt::format("{}{} of job {} is given up: its {}", reason.empty() ? "" : "; ",
                          to_string(*run_.servers.find(id)), name(), links_to(ends_of_it));
  }
  give_up(blame.servers, reason);
}

// They live, and other jobs reach them: to this one they are as if they drained.
void Job::give_up(const std::vector<ServerId>& servers, const std::string& reason) {
  put_drains_off();
  for (const ServerId id : servers) {
    if (const auto why = obstacle(id))
      return fail(make_error(why->code, reason + "; " + why->message, why->advice));
    refusals_.erase(id);  // now it has to go
  }
  unwilling_.insert(servers.begin(), servers.end());
  const std::set<ServerId> leave = leaving(true);
  if (!has_target({}, leave, true)) return fail(nobody_takes(reason));
  begin_move(std::nullopt, reason, leave, lanes_.size());
}

// ---- for questions ----

std::vector<CutLink> Job::cut_links(TimePoint now) const {
  std::vector<CutLink> out;
  for (const auto& [link, cut] : cuts_) {
    if (out.size() < kMaxMissingNamed)
      out.push_back({link.first, link.second, milliseconds_of(now - cut.since)});
  }
  return out;
}

Wait Job::wait_of(const CutLink& link, const Silence& silence) const {
  Wait out = wait(WaitKind::link, {party(link.rank, silence), run_.servers.party(link.server, silence)}, 1);
  out.age_ms = link.age_ms;
  return out;
}

}  // namespace bps

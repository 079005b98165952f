#include "scheduler/job/membership.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/config/units.h"
#include "proto/wire/limits.h"
#include "scheduler/find_from.h"

namespace bps {
namespace {

constexpr Duration kDefaultJoinTimeout = std::chrono::seconds(60);
constexpr std::uint64_t kMaxJoinTimeoutMs = 30ull * 24 * 3600 * 1000;
constexpr std::uint64_t kMaxRunAgeMs = 10ull * 365 * 24 * 3600 * 1000;

std::string short_name(Rank rank, const std::string& host) {
  return fmt::format("rank {} (host {})", rank.value, host);
}

std::string staleness_text(std::uint32_t staleness) {
  return staleness == kUnboundedStaleness ? "unbounded" : std::to_string(staleness);
}

std::string partition_text(std::uint64_t bytes) { return bytes == 0 ? "none" : std::to_string(bytes); }

const char* worker_loss_text(WorkerLoss loss) { return loss == WorkerLoss::fail ? "fail" : "shrink"; }

const char* grouping_text(LocalGrouping grouping) {
  return grouping == LocalGrouping::off ? "off" : grouping == LocalGrouping::host ? "host" : "nccl";
}

// Asked when each one leaves, and by each newcomer.
template <class Is>
bool finds_any(const std::map<Rank, Worker>& workers, Rank& last, Is is) {
  const auto found = find_from(workers, last, [&](const auto& entry) { return is(entry.second); });
  last = found.value_or(last);
  return found.has_value();
}

const char* mode_text(Mode mode) { return mode == Mode::sync ? "sync" : "async"; }

}  // namespace

std::string to_string(const Worker& worker) {
  return fmt::format("rank {} (host {}, {})", worker.rank.value, worker.host, worker.address);
}

Duration join_timeout_of(const HelloWorker& hello) {
  if (hello.join_timeout_ms == 0) return kDefaultJoinTimeout;
  return std::chrono::milliseconds(std::min(hello.join_timeout_ms, kMaxJoinTimeoutMs));
}

Membership::Membership(const HelloWorker& first, TimePoint now) : settings_(first), created_at_(now) {}

void Membership::note_age(TimePoint now, std::uint64_t age_ms) {
  created_at_ = std::min(created_at_, now - std::chrono::milliseconds(std::min(age_ms, kMaxRunAgeMs)));
}

Error Membership::disagreement(const HelloWorker& hello) const {
  const auto differ = [&](const char* what, const std::string& theirs, const std::string& ours,
                          const char* advice = "start all ranks of a job with the same settings") {
    return make_error(ErrorCode::configuration,
                      fmt::format("{} of job {} differs: {} has {}, {} has {}", what, settings_.job,
                                  short_name(settings_.rank, settings_.host), ours,
                                  short_name(hello.rank, hello.host), theirs),
                      advice);
  };
  // Before the settings: another version may have others.
  const std::uint16_t version = version_in_use(hello.capabilities);
  if (const std::uint16_t ours = version_in_use(settings_.capabilities); version != ours) {
    return differ("protocol version", std::to_string(version), std::to_string(ours),
                  "install the same bps version for all ranks of a job");
  }
  if (hello.world_size != settings_.world_size) {
    return differ("world-size", std::to_string(hello.world_size), std::to_string(settings_.world_size));
  }
  if (hello.partition_bytes != settings_.partition_bytes) {
    return differ("partition-bytes", partition_text(hello.partition_bytes),
                  partition_text(settings_.partition_bytes));
  }
  if (hello.mode != settings_.mode) return differ("mode", mode_text(hello.mode), mode_text(settings_.mode));
  if (hello.staleness != settings_.staleness) {
    return differ("staleness", staleness_text(hello.staleness), staleness_text(settings_.staleness));
  }
  if (hello.worker_loss != settings_.worker_loss) {
    return differ("worker-loss", worker_loss_text(hello.worker_loss),
                  worker_loss_text(settings_.worker_loss));
  }
  if (hello.unequal_sums != settings_.unequal_sums) {
    return differ("unequal-sums", hello.unequal_sums ? "1" : "0", settings_.unequal_sums ? "1" : "0");
  }
  if (hello.local_group != settings_.local_group) {
    return differ("local-group", grouping_text(hello.local_group), grouping_text(settings_.local_group));
  }
  return {};
}

Membership::Decision Membership::decide(const HelloWorker& hello, bool gathering) const {
  const auto holder = workers_.find(hello.rank);
  const bool held = holder != workers_.end() && !holder->second.left && !holder->second.suspected();
  const auto any_suspected = [&] {
    return finds_any(workers_, suspected_, [](const Worker& worker) { return worker.suspected(); });
  };
  const auto any_left = [&] {
    return finds_any(workers_, left_,
                     [](const Worker& worker) { return worker.left && worker.loss.empty(); });
  };
  if (!gathering && (any_suspected() || (!held && any_left()))) return {Verdict::wait, {}};
  if (holder != workers_.end() && !holder->second.loss.empty()) {
    return {Verdict::refuse,
            make_error(ErrorCode::configuration,
                       fmt::format("job {} goes on without rank {}, and takes no new one: {}", settings_.job,
                                   hello.rank.value, holder->second.loss),
                       "start it again when this run has ended, or give the run another job name")};
  }
  if (Error error = disagreement(hello); error.code != ErrorCode::ok)
    return {Verdict::refuse, std::move(error), true};
  if (holder == workers_.end()) return {Verdict::admit, {}};
  if (!held) return {Verdict::wait, {}};
  return {Verdict::refuse, make_error(ErrorCode::configuration,
                                      fmt::format("rank {} of job {} is taken by {}", hello.rank.value,
                                                  settings_.job, to_string(holder->second)),
                                      "give every worker its own rank, or this run another job name")};
}

void Membership::admit(const HelloWorker& hello, Incarnation incarnation, PeerId peer, std::string address,
                       TimePoint join_deadline) {
  Worker worker;
  worker.rank = hello.rank;
  worker.incarnation = incarnation;
  worker.peer = peer;
  worker.host = hello.host;
  worker.address = std::move(address);
  worker.local_rank = hello.local_rank;
  worker.bandwidth_bps = hello.bandwidth_bps;
  worker.group_name = hello.group_name;
  worker.told_group_size = hello.group_size;
  worker.leader = hello.rank;
  worker.join_timeout = join_timeout_of(hello);
  worker.join_deadline = join_deadline;
  worker.retain = hello.retain;
  workers_[hello.rank] = std::move(worker);
}

void Membership::expect(const Member& member) {
  Worker worker;
  worker.rank = member.rank;
  worker.incarnation = member.incarnation;
  worker.host = member.host;
  worker.address = "not back yet";
  worker.local_rank = member.local_rank;
  worker.join_deadline = TimePoint::max();
  worker.retain = settings_.retain;
  workers_.emplace(member.rank, std::move(worker));
  restore_group(member);
}

Worker* Membership::find(Rank rank) {
  const auto it = workers_.find(rank);
  return it == workers_.end() ? nullptr : &it->second;
}

bool Membership::complete() const { return workers_.size() == world_size() && suspected().empty(); }

bool Membership::all_left() const {
  return !finds_any(workers_, staying_, [](const Worker& worker) { return !worker.left; });
}

std::vector<Rank> Membership::missing() const {
  std::vector<Rank> ranks;
  for (Rank rank{0}; rank.value < world_size(); rank = rank.next()) {
    if (workers_.count(rank) == 0) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<Rank> Membership::suspected() const {
  std::vector<Rank> ranks;
  for (const auto& [rank, worker] : workers_) {
    if (worker.suspected()) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<Member> Membership::members() const {
  std::vector<Member> members;
  for (const auto& [rank, worker] : workers_) {
    members.push_back({rank, worker.incarnation, worker.host, worker.local_rank, worker.group_size,
                       worker.leader, worker.group_rank});
  }
  return members;
}

std::string Membership::name_of(Rank rank) const {
  const auto it = workers_.find(rank);
  return it == workers_.end() ? fmt::format("rank {}", rank.value) : short_name(rank, it->second.host);
}

const Worker* Membership::without_retain() const {
  const auto it = std::find_if(workers_.begin(), workers_.end(),
                               [](const auto& entry) { return !entry.second.retain && !entry.second.gone; });
  return it == workers_.end() ? nullptr : &it->second;
}

const Worker* Membership::least_patient() const {
  const auto it = std::min_element(workers_.begin(), workers_.end(), [](const auto& a, const auto& b) {
    return a.second.join_deadline < b.second.join_deadline;
  });
  return it == workers_.end() ? nullptr : &it->second;
}

// ---- the workers of a host that are one contributor (decision 0019) ----

Status Membership::form_groups() {
  std::map<std::string, std::vector<Worker*>> groups;
  for (auto& [rank, worker] : workers_) {
    worker.leader = rank;
    worker.group_rank = 0;
    worker.group_size = 1;
    if (settings_.local_group != LocalGrouping::off) groups[worker.group_name].push_back(&worker);
  }
  for (const auto& [name, members] : groups) {
    const auto size = static_cast<std::uint32_t>(members.size());
    if (size > kMaxLocalGroupSize) {
      return make_error(
          ErrorCode::configuration,
          fmt::format("{} of job {} are on host {}, at most {} can sum there", counted(size, "worker"),
                      settings_.job, members.front()->host, kMaxLocalGroupSize),
          "give parts of them a BPS_LOCAL_GROUP_ID of their own, or set local-group off");
    }
    for (std::uint32_t i = 0; i < size; ++i) {
      Worker& worker = *members[i];
      if (worker.told_group_size != 0 && worker.told_group_size != size) {
        return make_error(
            ErrorCode::configuration,
            fmt::format("{} of job {} was told that host {} has {}, {} have come", name_of(worker.rank),
                        settings_.job, worker.host, counted(worker.told_group_size, "worker"), size),
            "give all ranks of a host their real number (BPS_LOCAL_SIZE), or none");
      }
      worker.leader = members.front()->rank;
      worker.group_rank = i;
      worker.group_size = size;
    }
  }
  return {};
}

void Membership::restore_group(const Member& member) {
  const auto found = workers_.find(member.rank);
  if (found == workers_.end()) return;
  found->second.leader = member.leader;
  found->second.group_rank = member.group_rank;
  found->second.group_size = member.weight;
}

bool Membership::is_in_its_group(const Member& member) const {
  const auto found = workers_.find(member.rank);
  if (found == workers_.end()) return true;
  const Worker& worker = found->second;
  return worker.leader == member.leader && worker.group_rank == member.group_rank &&
         worker.group_size == member.weight;
}

}  // namespace bps

// Who may come in.
#include <fmt/format.h>

#include <algorithm>

#include "proto/base/config/units.h"
#include "scheduler/core/scheduler_core.h"
#include "scheduler/text.h"

namespace bps {
namespace {

constexpr std::uint64_t kPartitionMultiple = 8;  // every element size divides it

Error full(const char* what, std::size_t limit) {
  return make_error(ErrorCode::out_of_memory, fmt::format("the scheduler has {} {}, its limit", limit, what),
                    "wait until others have ended, or run another scheduler");
}

bool unspecified(const std::string& host) { return host.empty() || host == "0.0.0.0" || host == "::"; }

}  // namespace

// ---- workers ----

std::optional<Error> SchedulerCore::objection(const HelloWorker& hello) const {
  if (stopping_) return *stopping_;
  if (hello.rank.value >= hello.world_size) {
    return make_error(
        ErrorCode::configuration,
        fmt::format("rank {} does not exist in a job of {} workers", hello.rank.value, hello.world_size),
        "ranks go from 0 to world_size - 1");
  }
  if (hello.partition_bytes % kPartitionMultiple != 0) {
    return make_error(ErrorCode::configuration,
                      fmt::format("partition_bytes is {}, which is no multiple of {}", hello.partition_bytes,
                                  kPartitionMultiple),
                      "use a multiple, so that no partition ends inside an element");
  }
  const bool is_new = hello.incarnation.value == 0;
  if (is_new && worker_count_ + waiting_.size() >= options_.max_workers)
    return full("workers", options_.max_workers);
  if (hello.job_run.value == 0 || hello.incarnation.value != 0) return std::nullopt;
  const auto running = jobs_.find(hello.job_run);
  if (running != jobs_.end() && running->second->name() == hello.job &&
      running->second->phase() == Job::Phase::gathering) {
    return std::nullopt;
  }
  std::string state = running != jobs_.end() ? "has started" : "has ended";
  for (const EndedRun& ended : ended_runs_) {
    if (ended.run == hello.job_run && ended.error.code != ErrorCode::ok)
      state = "has failed: " + ended.error.message;
  }
  return make_error(
      ErrorCode::peer_lost,
      fmt::format("run {:016x} of job {} takes no joins: it {}", hello.job_run.value, hello.job, state),
      "start the whole job again");
}

void SchedulerCore::on_hello(TimePoint now, PeerId id, HelloWorker& hello) {
  if (hello.host.empty()) hello.host = peers_.at(id).address;
  if (const auto error = objection(hello)) return refuse(id, *error);
  if (hello.incarnation.value != 0) return attach(now, id, hello);
  const TimePoint until = now + join_timeout_of(hello);
  if (try_join(now, id, hello, until)) return;
  Peer& peer = peers_.at(id);
  peer.role = Role::waiting;
  outbox_.log(LogLevel::info,
              fmt::format("job {}: {} waits as rank {} until it is clear what becomes of the present run",
                          hello.job, peer.address, hello.rank.value));
  peer.waiting = Waiting{std::move(hello), until};
  waiting_.insert(id);
}

bool SchedulerCore::try_join(TimePoint now, PeerId id, const HelloWorker& hello, TimePoint until) {
  const auto known = run_of_name_.find(hello.job);
  if (known != run_of_name_.end()) {
    Job& job = *jobs_.at(known->second);
    // About to be forgotten; or it will be seen who is still there.
    if (job.ended() || job.phase() == Job::Phase::recovering) return false;
    const Membership::Decision decision = job.decide(hello);
    if (decision.verdict == Membership::Verdict::wait) return false;
    if (decision.verdict == Membership::Verdict::refuse) {
      job.note_refused(hello.rank, decision.error);
      refuse(id, decision.error);
    } else {
      join(now, id, hello, until, job);
    }
    return true;
  }
  // Those of a run before may still come back, and it is theirs.
  for (const auto& [run, name] : awaited_) {
    if (name == hello.job) return false;
  }
  for (const auto& [server, orphan] : orphans_) {
    for (const auto& [run, report] : orphan.runs) {
      if (report.open.job == hello.job) return false;
    }
  }
  if (jobs_.size() >= options_.max_jobs) {
    refuse(id, full("jobs", options_.max_jobs));
    return true;
  }
  const JobRun run{random_id()};
  auto job = std::make_unique<Job>(hello, run, term_, now, servers_, outbox_, options_.job);
  run_of_name_[hello.job] = run;
  ++state_changes_;
  Job& created = *jobs_.emplace(run, std::move(job)).first->second;
  join(now, id, hello, until, created);
  return true;
}

void SchedulerCore::join(TimePoint now, PeerId id, const HelloWorker& hello, TimePoint until, Job& job) {
  const Incarnation incarnation{random_id()};
  welcomed_ = true;
  Peer& peer = peers_.at(id);
  peer.role = Role::worker;
  peer.incarnation = incarnation;
  Node node;
  node.role = Role::worker;
  node.peer = id;
  node.run = job.run();
  node.rank = hello.rank;
  nodes_.emplace(incarnation, std::move(node));
  detector_.add(incarnation, now);
  ++worker_count_;
  job.admit(hello, incarnation, id, peer.address, until);
}

void SchedulerCore::retry_waiting(TimePoint now) {
  const std::set<PeerId> waiting = waiting_;
  for (const PeerId id : waiting) {
    const auto it = peers_.find(id);
    if (it == peers_.end()) continue;
    const Waiting wait = *it->second.waiting;
    if (now >= wait.until || !try_join(now, id, wait.hello, wait.until)) continue;
    waiting_.erase(id);
    if (const auto peer = peers_.find(id); peer != peers_.end()) peer->second.waiting.reset();
  }
}

void SchedulerCore::expire_waiting(TimePoint now) {
  const std::set<PeerId> waiting = waiting_;
  for (const PeerId id : waiting) {
    const Waiting& wait = *peers_.at(id).waiting;
    if (now < wait.until) continue;
    refuse(id, make_error(ErrorCode::deadline,
                          fmt::format("rank {} waited {} for the present run of job {} to end",
                                      wait.hello.rank.value, seconds_text(join_timeout_of(wait.hello)),
                                      wait.hello.job),
                          "end that run first, or give this one another job name"));
  }
}

// ---- servers ----

std::optional<Error> SchedulerCore::objection(const HelloServer& hello) const {
  if (stopping_) return *stopping_;
  if (unspecified(hello.data.host) || hello.data.port == 0) {
    return make_error(ErrorCode::configuration,
                      fmt::format("workers cannot reach a server at {}", to_string(hello.data)),
                      "give the server an address to name with --advertise");
  }
  if (hello.incarnation.value == 0 && servers_.all().size() >= options_.max_servers)
    return full("servers", options_.max_servers);
  for (const auto& [id, server] : servers_.all()) {
    if (server.endpoint == hello.data && server.host != hello.host && server.peer.value != 0) {
      return make_error(ErrorCode::configuration,
                        fmt::format("{} names the same address for workers as this one on host {}",
                                    to_string(server), hello.host),
                        "give each server its own --listen or --advertise address");
    }
  }
  return std::nullopt;
}

void SchedulerCore::on_hello(TimePoint now, PeerId id, HelloServer& hello) {
  if (hello.host.empty()) hello.host = peers_.at(id).address;
  if (const auto error = objection(hello)) return refuse(id, *error);
  if (hello.incarnation.value != 0) return attach(now, id, hello);
  // Its number might be that of one that comes back: it may try again.
  const bool forgetful = options_.before.last_server.value == 0;
  if (forgetful && (!recovering_.empty() || !orphans_.empty())) return close(id);
  bury_predecessor(hello);
  const Incarnation incarnation{random_id()};
  last_server_ = last_server_.next();
  ++state_changes_;
  Peer& peer = peers_.at(id);
  peer.role = Role::server;
  peer.incarnation = incarnation;
  Node node;
  node.role = Role::server;
  node.peer = id;
  node.server = last_server_;
  nodes_.emplace(incarnation, std::move(node));
  detector_.add(incarnation, now);
  ServerRecord record;
  record.id = last_server_;
  record.incarnation = incarnation;
  record.peer = id;
  record.host = hello.host;
  record.endpoint = hello.data;
  record.shards = hello.shards;
  record.bandwidth_bps = hello.bandwidth_bps;
  record.memory_max = hello.memory_max;
  record.rdma = hello.rdma;
  const ServerRecord& server = servers_.add(std::move(record));
  welcomed_ = true;
  outbox_.send(id, Welcome{term_, incarnation, last_server_, JobRun{}});
  outbox_.log(LogLevel::info,
              fmt::format("{} joined: {}{}", to_string(server), counted(server.shards, "shard"),
                          server.rdma ? ", offers RDMA" : ""));
  for (const auto& [run, job] : jobs_)
    job->maybe_start();
}

void SchedulerCore::bury_predecessor(const HelloServer& hello) {
  const auto it = std::find_if(servers_.all().begin(), servers_.all().end(),
                               [&](const auto& entry) { return entry.second.endpoint == hello.data; });
  if (it == servers_.all().end()) return;
  const ServerRecord old = it->second;
  if (old.peer.value != 0) {
    outbox_.send(old.peer,
                 Refused{ErrorCode::peer_lost, "another server has registered with your address", ""});
    close(old.peer);
  }
  bury_server(old.id, "another process serves its address now");
  forget_node(old.incarnation);
}

}  // namespace bps

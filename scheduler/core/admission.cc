#include "scheduler/core/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "proto/base/config/units.h"
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

std::uint64_t Admission::random_id() {
  for (;;) {
    const std::uint64_t id = random_();
    if (id != 0 && !tables_.nodes.has(Incarnation{id}) && tables_.runs.find(JobRun{id}) == nullptr) return id;
  }
}

// ---- workers ----

std::optional<Error> Admission::objection(const HelloWorker& hello) const {
  if (hello.rank.value >= hello.world_size) {
    return make_error(
        ErrorCode::configuration,
        fmt::format("rank {} does not exist in a job of {} workers", hello.rank.value, hello.world_size),
        "ranks go from 0 to world-size - 1");
  }
  if (hello.partition_bytes % kPartitionMultiple != 0) {
    return make_error(ErrorCode::configuration,
                      fmt::format("partition-bytes is {}, which is no multiple of {}", hello.partition_bytes,
                                  kPartitionMultiple),
                      "use a multiple, so that no partition ends inside an element");
  }
  if (hello.incarnation.value != 0) return std::nullopt;
  if (tables_.nodes.worker_count() + tables_.newcomers.size() >= tables_.options.max_workers)
    return full("workers", tables_.options.max_workers);
  return join_objection(hello);
}

// It may name the run that it wants to join.
std::optional<Error> Admission::join_objection(const HelloWorker& hello) const {
  if (hello.job_run.value == 0) return std::nullopt;
  const Job* const running = tables_.runs.find(hello.job_run);
  if (running != nullptr && running->name() == hello.job && running->phase() == Job::Phase::gathering)
    return std::nullopt;
  std::string state = running != nullptr ? "has started" : "has ended";
  const Runs::Ended* const ended = tables_.runs.ended(hello.job_run);
  if (ended != nullptr && ended->error.code != ErrorCode::ok) state = "has failed: " + ended->error.message;
  return make_error(
      ErrorCode::peer_lost,
      fmt::format("run {:016x} of job {} takes no joins: it {}", hello.job_run.value, hello.job, state),
      "start the whole job again");
}

void Admission::greet(TimePoint now, PeerId id, HelloWorker& hello) {
  if (end_.has_begun()) return end_.refuse(id, hello);
  Peer& peer = tables_.peers.at(id);
  if (hello.host.empty()) hello.host = peer.address;
  if (const auto error = objection(hello)) return tables_.peers.refuse(id, *error);
  if (hello.incarnation.value != 0) return attachment_.attach(now, id, hello);
  const TimePoint until = now + join_timeout_of(hello);
  if (try_join(now, id, hello, until)) return;
  peer.role = PeerRole::waiting;
  tables_.outbox.log(
      LogLevel::info,
      fmt::format("job {}: {} waits as rank {} until it is clear what becomes of the present run", hello.job,
                  peer.address, hello.rank.value));
  tables_.newcomers.add(id, {std::move(hello), until});
}

bool Admission::try_join(TimePoint now, PeerId id, const HelloWorker& hello, TimePoint until) {
  if (Job* const job = tables_.runs.of_name(hello.job)) {
    // About to be forgotten; or it will be seen who is still there.
    if (job->ended() || job->phase() == Job::Phase::recovering) return false;
    const Membership::Decision decision = job->decide(hello);
    if (decision.verdict == Membership::Verdict::wait) return false;
    if (decision.verdict == Membership::Verdict::refuse) {
      job->note_refused(now, hello.rank, decision);
      tables_.peers.refuse(id, decision.error);
    } else {
      join(now, id, hello, until, *job);
    }
    return true;
  }
  // Those of a run before may still come back, and it is theirs.
  if (tables_.awaited.has_job(hello.job)) return false;
  if (tables_.runs.size() >= tables_.options.max_jobs) {
    tables_.peers.refuse(id, full("jobs", tables_.options.max_jobs));
    return true;
  }
  const JobRun run{random_id()};
  join(now, id, hello, until, tables_.runs.begin(now, hello, run, tables_.succession.term()));
  return true;
}

void Admission::join(TimePoint now, PeerId id, const HelloWorker& hello, TimePoint until, Job& job) {
  const Incarnation incarnation{random_id()};
  tables_.succession.note_welcome(now);
  tables_.peers.become(id, PeerRole::worker, incarnation);
  Node node;
  node.role = PeerRole::worker;
  node.peer = id;
  node.run = job.run();
  node.rank = hello.rank;
  tables_.nodes.add(incarnation, std::move(node), now);
  job.admit(hello, incarnation, id, tables_.peers.at(id).address, until);
}

void Admission::retry(TimePoint now) {
  for (const PeerId id : tables_.newcomers.peers()) {
    const Newcomers::Newcomer* const found = tables_.newcomers.find(id);
    if (found == nullptr) continue;
    const Newcomers::Newcomer newcomer = *found;
    if (now >= newcomer.until || !try_join(now, id, newcomer.hello, newcomer.until)) continue;
    tables_.newcomers.remove(id);
  }
}

void Admission::expire(TimePoint now) {
  for (const PeerId id : tables_.newcomers.peers()) {
    const Newcomers::Newcomer& newcomer = *tables_.newcomers.find(id);
    if (now < newcomer.until) continue;
    tables_.peers.refuse(
        id, make_error(ErrorCode::deadline,
                       fmt::format("rank {} waited {} for the present run of job {} to end",
                                   newcomer.hello.rank.value, seconds_text(join_timeout_of(newcomer.hello)),
                                   newcomer.hello.job),
                       "end that run first, or give this one another job name"));
  }
}

// ---- servers ----

std::optional<Error> Admission::objection(const HelloServer& hello) const {
  if (unspecified(hello.data.host) || hello.data.port == 0) {
    return make_error(ErrorCode::configuration,
                      fmt::format("workers cannot reach a server at {}", to_string(hello.data)),
                      "give the server an address to name with --advertise");
  }
  const auto& servers = tables_.servers.all();
  if (hello.incarnation.value == 0 && servers.size() >= tables_.options.max_servers)
    return full("servers", tables_.options.max_servers);
  for (const auto& [id, server] : servers) {
    if (server.endpoint == hello.data && server.host != hello.host && server.peer.value != 0) {
      return make_error(ErrorCode::configuration,
                        fmt::format("{} names the same address for workers as this one on host {}",
                                    to_string(server), hello.host),
                        "give each server its own --listen or --advertise address");
    }
  }
  return std::nullopt;
}

void Admission::greet(TimePoint now, PeerId id, HelloServer& hello) {
  if (end_.has_begun()) return end_.refuse(id, hello);
  if (hello.host.empty()) hello.host = tables_.peers.at(id).address;
  if (const auto error = objection(hello)) return tables_.peers.refuse(id, *error);
  if (hello.incarnation.value != 0) return attachment_.attach(now, id, hello);
  // Its number might be that of one that comes back: it may try again.
  const bool others_may_come = !tables_.runs.recovering().empty() || tables_.awaited.has_brought();
  if (!tables_.succession.knows_servers() && others_may_come) return tables_.peers.close(id);
  endings_.replace(hello);
  const Incarnation incarnation{random_id()};
  const ServerId number = tables_.succession.number_server();
  tables_.peers.become(id, PeerRole::server, incarnation);
  Node node;
  node.role = PeerRole::server;
  node.peer = id;
  node.server = number;
  tables_.nodes.add(incarnation, std::move(node), now);
  ServerRecord record;
  record.id = number;
  record.incarnation = incarnation;
  record.peer = id;
  record.describe(hello);
  const ServerRecord& server = tables_.servers.add(std::move(record));
  tables_.succession.note_welcome(now);
  tables_.outbox.send(id, Welcome{tables_.succession.term(), incarnation, number, JobRun{}});
  tables_.outbox.log(LogLevel::info,
                     fmt::format("{} joined: {}{}", to_string(server), counted(server.shards, "shard"),
                                 server.rdma ? ", offers RDMA" : ""));
  tables_.runs.maybe_start_all();
}

// ---- administrators ----

void Admission::greet(TimePoint now, PeerId id, const HelloAdmin&) {
  const std::size_t admins = tables_.nodes.admin_count();
  if (admins >= tables_.options.max_admins) {
    return tables_.peers.refuse(id,
                                make_error(ErrorCode::out_of_memory,
                                           fmt::format("{} administrators are connected, the limit", admins),
                                           "try again when one of them has ended"));
  }
  const Incarnation incarnation{random_id()};
  tables_.peers.become(id, PeerRole::admin, incarnation);
  Node node;
  node.role = PeerRole::admin;
  node.peer = id;
  tables_.nodes.add(incarnation, std::move(node), now);
  tables_.outbox.send(id, Welcome{tables_.succession.term(), incarnation, ServerId{}, JobRun{}});
  tables_.outbox.log(LogLevel::debug, fmt::format("{} is an administrator", tables_.peers.at(id).address));
}

}  // namespace bps

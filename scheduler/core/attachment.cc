#include "scheduler/core/attachment.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <set>
#include <utility>

#include "scheduler/text.h"

namespace bps {
namespace {

constexpr std::uint64_t kMaxTerm = std::uint64_t{1} << 62;
constexpr std::uint32_t kMaxServerNumber = std::uint32_t{1} << 31;

Error no_such_term() {
  return make_error(ErrorCode::protocol, "no scheduler has this term", "start it again");
}

Error too_many_workers() {
  return make_error(ErrorCode::out_of_memory, "the scheduler has too many workers", kRestartAdvice);
}

bool is_worker(const Node& node, JobRun run, Rank rank) {
  return node.role == PeerRole::worker && node.run == run && node.rank == rank;
}

}  // namespace

// ---- workers ----

void Attachment::attach(TimePoint now, PeerId id, const HelloWorker& hello) {
  if (hello.term.number > kMaxTerm) return tables_.peers.refuse(id, no_such_term());
  const Term& term = tables_.succession.term();
  // A worker has only its job's key: what it says about schedulers is believed by nobody who has nodes. It
  // may look for the later one until its grace is over.
  if (hello.term.number >= term.number && !tables_.succession.is_own(hello.term) &&
      tables_.succession.has_welcomed())
    return tables_.peers.close(id);
  if (tables_.succession.is_superseded_by(hello.term, now)) return;
  const Job* const running = tables_.runs.find(hello.job_run);
  // It proved the key of the job that it names, and no other. If the run should be another job's, that will
  // be seen when servers have come back: it may try again.
  if (running != nullptr && running->name() != hello.job) return tables_.peers.close(id);
  if (const Status status = bring_back(now, id, hello); !status)
    return tables_.peers.refuse(id, status.error());
  const Node* const node = tables_.nodes.find(hello.incarnation);
  if (node == nullptr) return tables_.peers.close(id);
  if (!is_worker(*node, hello.job_run, hello.rank) || !node->expelled_for.empty())
    return tables_.peers.refuse(id, farewell_to(hello));
  give_connection(now, id, hello.incarnation);
  tables_.peers.at(id).worker_report = std::make_unique<WorkerReport>();
  tables_.outbox.send(id, Welcome{term, hello.incarnation, ServerId{}, hello.job_run});
}

// What became of the run without it.
Error Attachment::farewell_to(const HelloWorker& hello) const {
  if (const Runs::Ended* const ended = tables_.runs.ended(hello.job_run)) {
    if (ended->error.code != ErrorCode::ok) return ended->error;
    return make_error(ErrorCode::peer_lost, fmt::format("job {} has ended", hello.job), "");
  }
  return make_error(ErrorCode::peer_lost,
                    fmt::format("rank {} of job {} was declared dead", hello.rank.value, hello.job),
                    "the process or its network hung; start the job again");
}

// Makes a node of it, if it can be one.
Status Attachment::bring_back(TimePoint now, PeerId id, const HelloWorker& hello) {
  const Node* const known = tables_.nodes.find(hello.incarnation);
  if (known == nullptr && tables_.succession.is_own(hello.term)) return farewell_to(hello);
  if (known != nullptr && !is_worker(*known, hello.job_run, hello.rank)) return farewell_to(hello);
  if (known == nullptr && tables_.nodes.worker_count() >= tables_.options.max_workers)
    return too_many_workers();
  const Result<Job*> job = bring_back_run(now, hello);
  if (!job) return job.error();
  const TimePoint until = now + join_timeout_of(hello);
  if (Status status = (*job)->take_back(hello, tables_.peers.at(id).address, until); !status) return status;
  if (known != nullptr) return {};
  Node node;
  node.role = PeerRole::worker;
  node.run = hello.job_run;
  node.rank = hello.rank;
  tables_.nodes.add(hello.incarnation, std::move(node), now);
  return {};
}

// The first worker that comes back brings its run.
Result<Job*> Attachment::bring_back_run(TimePoint now, const HelloWorker& hello) {
  if (Job* const running = tables_.runs.find(hello.job_run)) return running;
  const bool has_ended = tables_.runs.ended(hello.job_run) != nullptr;
  if (has_ended || hello.job_run.value == 0 || tables_.awaited.is_of_other(hello.job_run, hello.job))
    return farewell_to(hello);
  if (tables_.runs.of_name(hello.job) != nullptr) {
    return make_error(ErrorCode::peer_lost, fmt::format("another run of job {} is there", hello.job),
                      kRestartAdvice);
  }
  if (tables_.runs.size() >= tables_.options.max_jobs)
    return make_error(ErrorCode::out_of_memory, "the scheduler has too many jobs", kRestartAdvice);
  Job& job =
      tables_.runs.recover(now, hello, tables_.succession.term(), now + tables_.options.collect_time());
  tables_.awaited.claim(hello.job_run, job);
  return &job;
}

std::string Attachment::who_is(const Node& node) const {
  if (const ServerRecord* const server = tables_.servers.find(node.server);
      server != nullptr && node.role == PeerRole::server) {
    // After a restart it has said nothing of itself yet.
    return server->host.empty() ? fmt::format("server {}", node.server.value) : to_string(*server);
  }
  const Job* const job = tables_.runs.find(node.run);
  return fmt::format("rank {} of {}", node.rank.value, job == nullptr ? "a job" : "job " + job->name());
}

// The one that it had is worth nothing any more.
void Attachment::give_connection(TimePoint now, PeerId id, Incarnation incarnation) {
  Node& node = tables_.nodes.at(incarnation);
  if (node.peer.value != 0) {
    tables_.peers.close(node.peer);
    if (node.role == PeerRole::worker) {
      tables_.runs.at(node.run).worker_suspected(node.rank);
    } else {
      tables_.servers.find(node.server)->peer = PeerId{};
    }
  }
  Peer& peer = tables_.peers.at(id);
  tables_.outbox.log(LogLevel::info, fmt::format("{} is back, from {}", who_is(node), peer.address));
  node.peer = id;
  node.absent = false;
  tables_.peers.become(id, node.role, incarnation);
  peer.report_until = now + tables_.options.detector.heartbeat_deadline;
  tables_.nodes.detector().connection_back(incarnation, now);
  tables_.succession.note_welcome(now);
}

// ---- servers ----

void Attachment::attach(TimePoint now, PeerId id, const HelloServer& hello) {
  if (hello.term.number > kMaxTerm) return tables_.peers.refuse(id, no_such_term());
  if (tables_.succession.is_superseded_by(hello.term, now)) return;
  if (const Status status = bring_back(now, hello); !status) return tables_.peers.refuse(id, status.error());
  const Node* const node = tables_.nodes.find(hello.incarnation);
  if (node == nullptr || node->role != PeerRole::server || node->server != hello.server ||
      !node->expelled_for.empty()) {
    return tables_.peers.refuse(
        id, make_error(ErrorCode::peer_lost, "this server was declared dead", "start it again"));
  }
  give_connection(now, id, hello.incarnation);
  tables_.servers.find(hello.server)->describe(hello);
  tables_.peers.at(id).server_report = std::make_unique<ServerReport>();
  tables_.outbox.send(id, Welcome{tables_.succession.term(), hello.incarnation, hello.server, JobRun{}});
}

Status Attachment::bring_back(TimePoint now, const HelloServer& hello) {
  if (const Node* const known = tables_.nodes.find(hello.incarnation)) {
    if (known->role != PeerRole::worker || !known->absent) return {};
    // A job's workers have said that it is one of them.
    tables_.runs.at(known->run).fail(make_error(ErrorCode::protocol, "a node contradicts what others say"));
    tables_.nodes.forget(hello.incarnation);
  }
  if (tables_.succession.is_own(hello.term)) {
    return make_error(ErrorCode::peer_lost, fmt::format("server {} was declared dead", hello.server.value),
                      "the process or its network hung; start it again");
  }
  if (hello.server.value == 0 || hello.server.value > kMaxServerNumber) {
    return make_error(ErrorCode::peer_lost, fmt::format("no server is server {}", hello.server.value),
                      "start it again");
  }
  const ServerRecord* const other = tables_.servers.find(hello.server);
  if (other != nullptr && other->jobs.empty() && !tables_.succession.knows_servers()) {
    endings_.make_room(*other);
  } else if (other != nullptr) {
    return make_error(ErrorCode::peer_lost,
                      fmt::format("another server is server {} now", hello.server.value), "start it again");
  }
  ServerRecord record;
  record.id = hello.server;
  record.incarnation = hello.incarnation;
  tables_.servers.add(std::move(record));
  tables_.succession.skip_to(hello.server);
  Node node;
  node.role = PeerRole::server;
  node.server = hello.server;
  tables_.nodes.add(hello.incarnation, std::move(node), now);
  return {};
}

// ---- what they report ----

bool Attachment::take_report(TimePoint now, PeerId id, Peer& peer, Message& message) {
  if (!peer.reports()) return false;
  const Result<bool> complete =
      peer.worker_report != nullptr ? peer.worker_report->take(message) : peer.server_report->take(message);
  Status status = complete ? Status{} : Status{complete.error()};
  if (complete && *complete) {
    const Node& node = tables_.nodes.at(peer.incarnation);
    if (const auto worker = std::exchange(peer.worker_report, nullptr)) {
      status = tables_.runs.at(node.run).worker_attached(now, node.rank, id, std::move(*worker));
    } else {
      const auto server = std::exchange(peer.server_report, nullptr);
      status = attached(now, id, node, std::move(*server));
    }
  }
  if (!status) endings_.drop(now, id, status.error());
  return true;
}

Status Attachment::attached(TimePoint now, PeerId id, const Node& node, ServerReport report) {
  ServerRecord& server = *tables_.servers.find(node.server);
  server.peer = id;
  tables_.servers.ask_again(server);
  for (const auto& [run, known] : report.runs) {
    Job* const job = tables_.runs.find(run);
    if (job == nullptr || job->name() == known.open.job) continue;
    // Somebody who has not the key of that job says that the run is his.
    tables_.runs.disown(
        *job, make_error(ErrorCode::unauthorised, fmt::format("run {:016x} is another job's", run.value)));
  }
  for (const JobRun run : std::set<JobRun>(server.jobs)) {
    Job* const job = tables_.runs.find(run);
    const auto known = report.runs.find(run);
    if (job == nullptr || job->ended()) continue;
    if (Status status =
            job->server_attached(server.id, known == report.runs.end() ? nullptr : &known->second);
        !status)
      return status;
    if (known != report.runs.end()) report.runs.erase(known);
  }
  std::map<JobRun, RunReport> unclaimed;
  for (auto& [run, known] : report.runs) {
    Job* const job = tables_.runs.find(run);
    if (job != nullptr && !job->ended()) {
      if (Status status = job->server_attached(server.id, &known); !status) return status;
      continue;
    }
    tables_.servers.use(server.id, run);  // it does not drain before its runs are clear
    unclaimed.emplace(run, std::move(known));
  }
  tables_.awaited.add(now, server.id, std::move(unclaimed));
  tables_.runs.maybe_start_all();
  drains_.ask_again(server);
  return {};
}

void Attachment::expire(TimePoint now, const std::function<bool(PeerId)>& unread) {
  for (const PeerId id : tables_.peers.late(now)) {
    if (unread && unread(id)) continue;
    endings_.drop(now, id,
                  make_error(ErrorCode::deadline, "it has not said back what it was told",
                             "the process or its network hung; start it again"));
  }
}

// ---- who is missed ----

void Attachment::expect(TimePoint now, const Outbox::Absent& absent) {
  const TimePoint heard = now + tables_.options.collect_time() - tables_.options.detector.heartbeat_deadline;
  const Node* const known = tables_.nodes.find(absent.incarnation);
  if (known != nullptr && known->role == PeerRole::done) {
    if (known->peer.value != 0) tables_.peers.close(known->peer);
    tables_.nodes.forget(absent.incarnation);
  } else if (known != nullptr) {
    // Of another run, perhaps: it has its time from now on.
    if (known->absent) tables_.nodes.detector().heard(absent.incarnation, heard);
    if (!is_worker(*known, absent.run, absent.rank)) {
      tables_.runs.at(absent.run).fail(make_error(ErrorCode::protocol, "a node contradicts what others say"));
    }
    return;
  }
  if (tables_.nodes.worker_count() >= tables_.options.max_workers)
    return tables_.runs.at(absent.run).fail(too_many_workers());
  Node node;
  node.role = PeerRole::worker;
  node.run = absent.run;
  node.rank = absent.rank;
  node.absent = true;
  tables_.nodes.add(absent.incarnation, std::move(node), heard);
}

}  // namespace bps

// Who comes back: nodes that lost their connection to this scheduler, and those of one that was there before
// (decision 0013).
#include <fmt/format.h>

#include <algorithm>

#include "proto/base/config/units.h"
#include "scheduler/core/scheduler_core.h"
#include "scheduler/text.h"

namespace bps {
namespace {

constexpr std::uint64_t kMaxTerm = std::uint64_t{1} << 62;
constexpr std::uint32_t kMaxServerNumber = std::uint32_t{1} << 31;

}  // namespace

// Of two schedulers the one with the lower term goes. Before anybody was welcomed it can still be the later
// one: its clock was behind.
bool SchedulerCore::is_superseded_by(const Term& seen) {
  if (seen == term_ || seen.number < term_.number) return false;
  if (!welcomed_) {
    term_.number = seen.number + 1;
    ++state_changes_;
    return false;
  }
  superseded_ = make_error(ErrorCode::peer_lost,
                           fmt::format("a node has met a later scheduler, of term {}; this one is of term {}",
                                       seen.number, term_.number),
                           "run one scheduler, with --state-dir");
  return true;
}

// ---- workers ----

void SchedulerCore::attach(TimePoint now, PeerId id, const HelloWorker& hello) {
  if (hello.term.number > kMaxTerm)
    return refuse(id, make_error(ErrorCode::protocol, "no scheduler has this term", "start it again"));
  // A worker has only its job's key: what it says about schedulers is believed by nobody who has nodes. It
  // may look for the later one until its grace is over.
  if (hello.term.number >= term_.number && hello.term != term_ && welcomed_) return close(id);
  if (is_superseded_by(hello.term)) return;
  const auto running = jobs_.find(hello.job_run);
  // It proved the key of the job that it names, and no other. If the run should be another job's, that will
  // be seen when servers have come back: it may try again.
  if (running != jobs_.end() && running->second->name() != hello.job) return close(id);
  if (const Status status = bring_back(now, id, hello); !status) return refuse(id, status.error());
  const auto node = nodes_.find(hello.incarnation);
  if (node == nodes_.end()) return close(id);
  if (node->second.role != Role::worker || node->second.run != hello.job_run ||
      node->second.rank != hello.rank || !node->second.offence.empty()) {
    return refuse(id, farewell_to(hello));
  }
  give_connection(now, id, hello.incarnation);
  peers_.at(id).worker_report = std::make_unique<WorkerReport>();
  outbox_.send(id, Welcome{term_, hello.incarnation, ServerId{}, hello.job_run});
}

// What became of the run without it.
Error SchedulerCore::farewell_to(const HelloWorker& hello) const {
  for (const EndedRun& ended : ended_runs_) {
    if (ended.run != hello.job_run) continue;
    if (ended.error.code != ErrorCode::ok) return ended.error;
    return make_error(ErrorCode::peer_lost, fmt::format("job {} has ended", hello.job), "");
  }
  return make_error(ErrorCode::peer_lost,
                    fmt::format("rank {} of job {} was declared dead", hello.rank.value, hello.job),
                    "the process or its network hung; start the job again");
}

// Makes a node of it, if it can be one.
Status SchedulerCore::bring_back(TimePoint now, PeerId id, const HelloWorker& hello) {
  const auto node_of_it = nodes_.find(hello.incarnation);
  const bool known = node_of_it != nodes_.end();
  if (!known && hello.term == term_) return farewell_to(hello);
  if (known && (node_of_it->second.role != Role::worker || node_of_it->second.run != hello.job_run ||
                node_of_it->second.rank != hello.rank)) {
    return farewell_to(hello);
  }
  if (!known && worker_count_ >= options_.max_workers)
    return make_error(ErrorCode::out_of_memory, "the scheduler has too many workers", kRestartAdvice);
  auto running = jobs_.find(hello.job_run);
  if (running == jobs_.end()) {
    const bool ended = std::any_of(ended_runs_.begin(), ended_runs_.end(),
                                   [&](const EndedRun& run) { return run.run == hello.job_run; });
    const auto awaited = awaited_.find(hello.job_run);
    const bool is_other = awaited != awaited_.end() && awaited->second != hello.job;
    if (ended || is_other || hello.job_run.value == 0) return farewell_to(hello);
    for (const auto& [server, orphan] : orphans_) {
      const auto run = orphan.runs.find(hello.job_run);
      if (run != orphan.runs.end() && run->second.open.job != hello.job) return farewell_to(hello);
    }
    if (run_of_name_.count(hello.job) != 0) {
      return make_error(ErrorCode::peer_lost, fmt::format("another run of job {} is there", hello.job),
                        kRestartAdvice);
    }
    if (jobs_.size() >= options_.max_jobs)
      return make_error(ErrorCode::out_of_memory, "the scheduler has too many jobs", kRestartAdvice);
    auto job = std::make_unique<Job>(hello, hello.job_run, term_, now, servers_, outbox_, options_.job);
    job->recover_until(now + collect_time());
    run_of_name_[hello.job] = hello.job_run;
    running = jobs_.emplace(hello.job_run, std::move(job)).first;
    recovering_.insert(hello.job_run);
    awaited_.erase(hello.job_run);
    ++state_changes_;
    for (auto next = orphans_.begin(); next != orphans_.end();) {
      const auto here = next++;
      auto& runs = here->second.runs;
      const auto run = runs.find(hello.job_run);
      if (run == runs.end() || !running->second->server_attached(here->first, &run->second).ok()) continue;
      runs.erase(run);
      if (runs.empty()) orphans_.erase(here);
    }
  }
  Job& job = *running->second;
  const TimePoint until = now + join_timeout_of(hello);
  if (Status status = job.take_back(hello, peers_.at(id).address, until); !status) return status;
  if (known) return {};
  Node node;
  node.role = Role::worker;
  node.run = hello.job_run;
  node.rank = hello.rank;
  nodes_.emplace(hello.incarnation, std::move(node));
  detector_.add(hello.incarnation, now);
  ++worker_count_;
  return {};
}

std::string SchedulerCore::who_is(const Node& node) {
  if (const ServerRecord* const server = servers_.find(node.server);
      server != nullptr && node.role == Role::server) {
    // After a restart it has said nothing of itself yet.
    return server->host.empty() ? fmt::format("server {}", node.server.value) : to_string(*server);
  }
  const Job* const job = find_job(node.run);
  return fmt::format("rank {} of {}", node.rank.value, job == nullptr ? "a job" : "job " + job->name());
}

// The one that it had is worth nothing any more.
void SchedulerCore::give_connection(TimePoint now, PeerId id, Incarnation incarnation) {
  Node& node = nodes_.at(incarnation);
  if (node.peer.value != 0) {
    close(node.peer);
    if (node.role == Role::worker) {
      jobs_.at(node.run)->worker_suspected(node.rank);
    } else {
      servers_.find(node.server)->peer = PeerId{};
    }
  }
  outbox_.log(LogLevel::info, fmt::format("{} is back, from {}", who_is(node), peers_.at(id).address));
  node.peer = id;
  node.absent = false;
  Peer& peer = peers_.at(id);
  peer.role = node.role;
  peer.incarnation = incarnation;
  peer.report_until = now + options_.detector.heartbeat_deadline;
  detector_.connection_back(incarnation, now);
  welcomed_ = true;
}

// ---- servers ----

void SchedulerCore::attach(TimePoint now, PeerId id, const HelloServer& hello) {
  if (hello.term.number > kMaxTerm)
    return refuse(id, make_error(ErrorCode::protocol, "no scheduler has this term", "start it again"));
  if (is_superseded_by(hello.term)) return;
  if (const Status status = bring_back(now, hello); !status) return refuse(id, status.error());
  const auto node = nodes_.find(hello.incarnation);
  if (node == nodes_.end() || node->second.role != Role::server || node->second.server != hello.server ||
      !node->second.offence.empty()) {
    return refuse(id, make_error(ErrorCode::peer_lost, "this server was declared dead", "start it again"));
  }
  give_connection(now, id, hello.incarnation);
  ServerRecord& record = *servers_.find(hello.server);
  record.host = hello.host;
  record.endpoint = hello.data;
  record.shards = hello.shards;
  record.bandwidth_bps = hello.bandwidth_bps;
  record.memory_max = hello.memory_max;
  record.rdma = hello.rdma;
  peers_.at(id).server_report = std::make_unique<ServerReport>();
  outbox_.send(id, Welcome{term_, hello.incarnation, hello.server, JobRun{}});
}

Status SchedulerCore::bring_back(TimePoint now, const HelloServer& hello) {
  if (const auto known = nodes_.find(hello.incarnation); known != nodes_.end()) {
    if (known->second.role != Role::worker || !known->second.absent) return {};
    // A job's workers have said that it is one of them.
    jobs_.at(known->second.run)->fail(make_error(ErrorCode::protocol, "a node contradicts what others say"));
    forget_node(hello.incarnation);
  }
  if (hello.term == term_) {
    return make_error(ErrorCode::peer_lost, fmt::format("server {} was declared dead", hello.server.value),
                      "the process or its network hung; start it again");
  }
  if (hello.server.value == 0 || hello.server.value > kMaxServerNumber) {
    return make_error(ErrorCode::peer_lost, fmt::format("no server is server {}", hello.server.value),
                      "start it again");
  }
  if (servers_.find(hello.server) != nullptr) {
    return make_error(ErrorCode::peer_lost,
                      fmt::format("another server is server {} now", hello.server.value), "start it again");
  }
  ServerRecord record;
  record.id = hello.server;
  record.incarnation = hello.incarnation;
  servers_.add(std::move(record));
  skip_number(hello.server);
  Node node;
  node.role = Role::server;
  node.server = hello.server;
  nodes_.emplace(hello.incarnation, std::move(node));
  detector_.add(hello.incarnation, now);
  return {};
}

void SchedulerCore::skip_number(ServerId server) {
  if (server <= last_server_) return;
  last_server_ = server;
  ++state_changes_;
}

// ---- what they say back ----

bool SchedulerCore::take_report(TimePoint now, PeerId id, Peer& peer, Message& message) {
  if (peer.worker_report == nullptr && peer.server_report == nullptr) return false;
  const Result<bool> complete =
      peer.worker_report != nullptr ? peer.worker_report->take(message) : peer.server_report->take(message);
  Status status = complete ? Status{} : Status{complete.error()};
  if (complete && *complete) {
    const Node& node = nodes_.at(peer.incarnation);
    if (const auto worker = std::exchange(peer.worker_report, nullptr)) {
      status = attached(now, id, node, std::move(*worker));
    } else {
      const auto server = std::exchange(peer.server_report, nullptr);
      status = attached(now, id, node, std::move(*server));
    }
  }
  if (!status) offend(now, id, status.error());
  return true;
}

Status SchedulerCore::attached(TimePoint, PeerId id, const Node& node, WorkerReport report) {
  return jobs_.at(node.run)->worker_attached(node.rank, id, std::move(report));
}

Status SchedulerCore::attached(TimePoint now, PeerId id, const Node& node, ServerReport report) {
  ServerRecord& server = *servers_.find(node.server);
  server.peer = id;
  servers_.ask_again(server);
  for (const auto& [run, known] : report.runs) {
    Job* const job = find_job(run);
    if (job == nullptr || job->name() == known.open.job) continue;
    // Somebody who has not the key of that job says that the run is his.
    disowned_.insert(run);
    job->disown(make_error(ErrorCode::unauthorised, fmt::format("run {:016x} is another job's", run.value)));
  }
  for (const JobRun run : std::set<JobRun>(server.jobs)) {
    Job* const job = find_job(run);
    const auto known = report.runs.find(run);
    if (job == nullptr || job->ended()) continue;
    if (Status status =
            job->server_attached(server.id, known == report.runs.end() ? nullptr : &known->second);
        !status)
      return status;
    if (known != report.runs.end()) report.runs.erase(known);
  }
  Orphan orphan{now + collect_time(), {}};
  for (auto& [run, known] : report.runs) {
    Job* const job = find_job(run);
    if (job != nullptr && !job->ended()) {
      if (Status status = job->server_attached(server.id, &known); !status) return status;
      continue;
    }
    servers_.use(server.id, run);  // it does not drain before its runs are clear
    orphan.runs.emplace(run, std::move(known));
  }
  if (!orphan.runs.empty()) orphans_[server.id] = std::move(orphan);
  for (const auto& [run, job] : jobs_)
    job->maybe_start();
  // The connection may have broken before it read them.
  for (const DrainWatch& watch : drains_) {
    if (watch.query.server == server.id) outbox_.send(id, watch.query);
  }
  return {};
}

void SchedulerCore::expire_reports(TimePoint now) {
  std::vector<PeerId> late;
  for (const auto& [id, peer] : peers_) {
    const bool reports = peer.worker_report != nullptr || peer.server_report != nullptr;
    if (reports && now >= peer.report_until) late.push_back(id);
  }
  for (const PeerId id : late) {
    offend(now, id,
           make_error(ErrorCode::deadline, "it has not said back what it was told",
                      "the process or its network hung; start it again"));
  }
}

// Nobody has come for them.
void SchedulerCore::expire_orphans(TimePoint now) {
  for (auto it = orphans_.begin(); it != orphans_.end();) {
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
    it = orphans_.erase(it);
    retry_waiting_ = true;
  }
}

void SchedulerCore::expire_awaited(TimePoint now) {
  if (awaited_.empty()) return;
  if (!awaited_until_) {
    outbox_.log(LogLevel::info, fmt::format("waits for the workers of {} that the scheduler before had",
                                            counted(awaited_.size(), "job")));
    awaited_until_ = now + collect_time();
  }
  if (now < *awaited_until_) return;
  for (const auto& [run, name] : std::exchange(awaited_, {})) {
    outbox_.log(LogLevel::warn,
                fmt::format("job {}, run {:016x}: none of its workers has come back", name, run.value));
  }
  retry_waiting_ = true;
  ++state_changes_;
}

// It has the collect time to come back.
void SchedulerCore::add_absent(TimePoint now, const Outbox::Absent& absent) {
  const auto known = nodes_.find(absent.incarnation);
  if (known != nodes_.end() && known->second.role == Role::done) {
    if (known->second.peer.value != 0) close(known->second.peer);
    forget_node(absent.incarnation);
  } else if (known != nodes_.end()) {
    // Of another run, perhaps: it has its time from now on.
    if (known->second.absent)
      detector_.heard(absent.incarnation, now + collect_time() - options_.detector.heartbeat_deadline);
    if (known->second.role != Role::worker || known->second.run != absent.run ||
        known->second.rank != absent.rank)
      jobs_.at(absent.run)->fail(make_error(ErrorCode::protocol, "a node contradicts what others say"));
    return;
  }
  if (worker_count_ >= options_.max_workers) {
    return jobs_.at(absent.run)
        ->fail(make_error(ErrorCode::out_of_memory, "the scheduler has too many workers", kRestartAdvice));
  }
  Node node;
  node.role = Role::worker;
  node.run = absent.run;
  node.rank = absent.rank;
  node.absent = true;
  ++worker_count_;
  nodes_.emplace(absent.incarnation, std::move(node));
  detector_.add(absent.incarnation, now + collect_time() - options_.detector.heartbeat_deadline);
}

void SchedulerCore::try_recover(TimePoint now) {
  const std::set<JobRun> recovering = recovering_;
  for (const JobRun run : recovering) {
    Job& job = *jobs_.at(run);
    job.try_recover(now);
    if (job.phase() == Job::Phase::recovering) continue;
    recovering_.erase(run);
    retry_waiting_ = true;
    for (auto& [rank, message] : job.held().take()) {
      const auto& workers = job.membership().workers();
      const auto worker = workers.find(rank);
      if (job.ended() || worker == workers.end() || worker->second.peer.value == 0) continue;
      const Incarnation incarnation = worker->second.incarnation;
      on_worker(now, worker->second.peer, nodes_.at(incarnation), message);
    }
  }
}

}  // namespace bps

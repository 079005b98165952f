#include "scheduler/core/scheduler_core.h"

#include <fmt/format.h>

#include "proto/base/config/units.h"
#include "scheduler/text.h"

namespace bps {
namespace {

constexpr std::size_t kMaxEndedRuns = 256;
constexpr std::uint32_t kMaxClaimedServer = std::uint32_t{1}
                                            << 24;  // by a worker: numbers are not its to use up

Error unexpected(const Message& message, const char* from) {
  return make_error(ErrorCode::protocol, fmt::format("{} from {}", name_of(message), from),
                    "run the same bps version everywhere");
}

}  // namespace

SchedulerCore::SchedulerCore(CoreOptions options, std::function<std::uint64_t()> random)
    : options_(std::move(options)),
      random_(std::move(random)),
      term_{options_.term, random_()},
      clock_(options_.tick),
      detector_(options_.detector),
      servers_(outbox_),
      last_server_(options_.before.last_server),
      awaited_(options_.before.runs) {}

std::uint64_t SchedulerCore::random_id() {
  for (;;) {
    const std::uint64_t id = random_();
    if (id != 0 && nodes_.count(Incarnation{id}) == 0 && jobs_.count(JobRun{id}) == 0) return id;
  }
}

SchedulerState SchedulerCore::state() const {
  SchedulerState state{term_.number, last_server_, awaited_};
  for (const auto& [run, job] : jobs_)
    state.runs.emplace(run, job->name());
  return state;
}

Job* SchedulerCore::find_job(JobRun run) {
  const auto it = jobs_.find(run);
  return it == jobs_.end() ? nullptr : it->second.get();
}

// ---- events ----

void SchedulerCore::connected(PeerId peer, std::string address) { peers_[peer].address = std::move(address); }

void SchedulerCore::message(TimePoint now, PeerId peer, Message&& message) {
  now = clock_.advance(now);
  const auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  detector_.heard(it->second.incarnation, now);
  handle(now, peer, it->second, message);
  settle(now);
  carry_on_queries(now);
}

void SchedulerCore::lost(TimePoint now, PeerId peer, const Error& reason) {
  now = clock_.advance(now);
  const auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  outbox_.log(LogLevel::debug, fmt::format("{}: {}", it->second.address, reason.message));
  lose(now, peer, {});
  settle(now);
}

void SchedulerCore::expel(TimePoint now, PeerId peer, const Error& reason) {
  now = clock_.advance(now);
  offend(now, peer, reason);
  settle(now);
}

void SchedulerCore::tick(TimePoint now) {
  now = clock_.advance(now);
  for (const FailureDetector::Death& death : detector_.expire(now))
    bury(death);
  for (const auto& [run, job] : jobs_)
    job->tick(now);
  settle(now);
  expire_waiting(now);
  expire_reports(now);
  expire_orphans(now);
  expire_awaited(now);
  if (!started_) started_ = now;
  server_queries_.tick(now);
  carry_on_queries(now);
  if (now >= next_heartbeat_) {
    next_heartbeat_ = now + kHeartbeatInterval;
    send_heartbeats();
  }
}

void SchedulerCore::stop(TimePoint now, const Error& reason) {
  clock_.advance(now);
  stopping_ = reason;
  for (const auto& [run, job] : jobs_)
    job->fail(reason);
  for (const JobRun run : outbox_.take_ended_runs())
    retire(run);
  for (const auto& [id, peer] : peers_) {
    const bool is_server = peer.role == Role::server;
    outbox_.send(id,
                 Refused{reason.code, reason.message,
                         is_server ? "start this server again when a scheduler is there" : reason.advice});
    outbox_.close(id);
  }
  for (const auto& [incarnation, node] : nodes_) {
    detector_.remove(incarnation);
    servers_.remove(node.server);
  }
  peers_.clear();
  nodes_.clear();
  waiting_.clear();
  server_queries_ = {};
  drains_.clear();
  worker_count_ = 0;
  admin_count_ = 0;
}

// ---- messages ----

void SchedulerCore::handle(TimePoint now, PeerId id, Peer& peer, Message& message) {
  switch (peer.role) {
    case Role::greeting:
      if (auto* worker = std::get_if<HelloWorker>(&message)) return on_hello(now, id, *worker);
      if (auto* server = std::get_if<HelloServer>(&message)) return on_hello(now, id, *server);
      if (auto* admin = std::get_if<HelloAdmin>(&message)) return on_hello(now, id, *admin);
      return offend(now, id, unexpected(message, "a peer that has not said hello"));
    case Role::waiting:
      if (std::holds_alternative<Heartbeat>(message)) return;
      if (!std::holds_alternative<Leave>(message))
        return offend(now, id, unexpected(message, "a worker that waits"));
      outbox_.send(id, Left{});
      return close(id);
    case Role::worker:
      if (take_report(now, id, peer, message)) return;
      return on_worker(now, id, nodes_.at(peer.incarnation), message);
    case Role::server:
      if (take_report(now, id, peer, message)) return;
      return on_server(now, id, nodes_.at(peer.incarnation), message);
    case Role::admin: return on_admin(now, id, message);
    case Role::done:
      if (const auto* query = std::get_if<AskWaits>(&message))
        outbox_.send(id, Waits{query->request, {}, {}, 0, {}});
      // What it asked while the end was under way to it is answered by that.
      if (std::holds_alternative<Leave>(message)) outbox_.send(id, Left{});
      return;
  }
}

void SchedulerCore::on_worker(TimePoint now, PeerId id, Node& node, Message& message) {
  Job& job = *jobs_.at(node.run);
  Status status;
  if (job.phase() == Job::Phase::recovering && !std::holds_alternative<Heartbeat>(message)) {
    status = job.held().hold(node.rank, message);
  } else if (auto* declare = std::get_if<Declare>(&message)) {
    status = job.declare(node.rank, *declare);
  } else if (const auto* failed = std::get_if<TensorFailed>(&message)) {
    status = job.tensor_failed(node.rank, *failed);
  } else if (auto* barrier = std::get_if<Barrier>(&message)) {
    status = job.barrier(node.rank, barrier->number);
  } else if (std::holds_alternative<Leave>(message)) {
    job.worker_left(node.rank);
    job.maybe_start();
    retry_waiting_ = true;
  } else if (const auto* lane = std::get_if<LaneLost>(&message)) {
    status = job.lane_lost(now, node.rank, *lane);
  } else if (const auto* settled = std::get_if<Settled>(&message)) {
    status = job.settled(node.rank, settled->number);
    job.maybe_start();  // a server that drains may have waited for the one that is gone now
  } else if (auto* query = std::get_if<AskWaits>(&message)) {
    query->job = job.name();
    return on_waits_asked(now, id, std::move(*query));
  } else if (!std::holds_alternative<Heartbeat>(message)) {
    status = unexpected(message, "a worker");
  }
  if (!status) offend(now, id, status.error());
}

void SchedulerCore::on_server(TimePoint now, PeerId id, Node& node, Message& message) {
  if (std::holds_alternative<Heartbeat>(message)) return;
  ServerRecord& server = *servers_.find(node.server);
  if (std::holds_alternative<Leave>(message)) {
    if (!server.draining) {
      outbox_.log(LogLevel::info, fmt::format("{} drains; used by {}", to_string(server),
                                              counted(server.jobs.size(), "job")));
    }
    servers_.drain(node.server);
    for (const JobRun run : std::set<JobRun>(server.jobs)) {
      if (Job* job = find_job(run)) job->server_drains(server);
    }
    return;
  }
  if (const auto* open = std::get_if<OpenRounds>(&message))
    return server_queries_.answered(node.server, *open);
  const auto* ack = std::get_if<Ack>(&message);
  if (ack == nullptr) return offend(now, id, unexpected(message, "a server"));
  const auto request = server.unacknowledged.find(ack->request);
  if (request == server.unacknowledged.end()) {
    return offend(
        now, id,
        make_error(ErrorCode::protocol, fmt::format("Ack of request {}, which is not open", ack->request)));
  }
  const JobRun run = request->second.run;
  server.unacknowledged.erase(request);
  if (Job* job = find_job(run)) job->server_acked(node.server, ack->request, ack->error);
}

void SchedulerCore::send_heartbeats() {
  const auto heartbeat = std::make_shared<const Message>(Heartbeat{heartbeat_sequence_++});
  for (const auto& [id, peer] : peers_) {
    // Before its Welcome a worker expects nothing else.
    if (peer.role != Role::greeting && peer.role != Role::waiting) outbox_.send(id, heartbeat);
  }
}

// ---- ends ----

void SchedulerCore::refuse(PeerId id, const Error& error) {
  outbox_.warn_of_stranger(fmt::format("{} is refused: {}", peers_.at(id).address, error.message));
  outbox_.send(id, Refused{error.code, error.message, error.advice});
  close(id);
}

void SchedulerCore::close(PeerId id) {
  server_queries_.peer_gone(id);
  outbox_.close(id);
  waiting_.erase(id);
  peers_.erase(id);
}

void SchedulerCore::offend(TimePoint now, PeerId id, const Error& error) {
  const auto it = peers_.find(id);
  if (it == peers_.end()) return;
  std::string text = fmt::format("{} is dropped: {}", it->second.address, error.message);
  const bool is_known = it->second.role != Role::greeting && it->second.role != Role::waiting;
  is_known ? outbox_.log(LogLevel::warn, std::move(text)) : outbox_.warn_of_stranger(std::move(text));
  outbox_.send(id, Refused{error.code, error.message, error.advice});
  outbox_.close(id);
  lose(now, id, "dropped, because of: " + error.message);
}

void SchedulerCore::lose(TimePoint now, PeerId id, const std::string& offence) {
  const Peer peer = std::move(peers_.at(id));
  waiting_.erase(id);
  peers_.erase(id);
  server_queries_.peer_gone(id);
  const auto it = nodes_.find(peer.incarnation);
  if (it == nodes_.end()) return;
  Node& node = it->second;
  node.peer = PeerId{};
  node.offence = offence;
  if (peer.role == Role::done || peer.role == Role::admin) return forget_node(it->first);
  detector_.connection_lost(it->first, now);
  if (peer.role == Role::worker) return jobs_.at(node.run)->worker_suspected(node.rank);
  ServerRecord& server = *servers_.find(node.server);
  server.peer = PeerId{};
  orphans_.erase(node.server);
  if (!server.draining || !server.jobs.empty()) return;
  outbox_.log(LogLevel::info, fmt::format("{} left", to_string(server)));
  std::string how = "it has left";
  if (server.moved_partitions != 0)
    how = fmt::format("it was drained, {} moved", counted(server.moved_partitions, "partition"));
  Error failure;
  if (!server.failed.empty()) {
    how += "; meanwhile " + server.failed.front();
    if (server.failed.size() > 1)
      how += fmt::format(" (and {} more)", counted(server.failed.size() - 1, "job"));
    failure = make_error(ErrorCode::peer_lost, fmt::format("{} has gone: {}", to_string(server), how));
  }
  tell_gone(server, failure);
  gone_servers_.add(now, server, std::move(how));
  servers_.remove(node.server);
  forget_node(it->first);
}

void SchedulerCore::bury(const FailureDetector::Death& death) {
  const auto it = nodes_.find(death.node);
  if (it == nodes_.end()) return;  // went with something that was buried before
  const Node node = it->second;
  std::string how = death.connection_lost ? fmt::format("connection lost {} ago", seconds_text(death.since))
                                          : fmt::format("no heartbeat for {}", seconds_text(death.since));
  const bool plainly_lost = death.connection_lost && !node.absent && node.offence.empty();
  if (node.absent) how = "it has not come back since the scheduler was started again";
  if (!node.offence.empty()) how = node.offence;
  if (node.peer.value != 0) {
    outbox_.send(node.peer, Refused{ErrorCode::peer_lost, fmt::format("you were declared dead: {}", how),
                                    "the process or its network hung; start it again"});
    close(node.peer);
  }
  if (node.role == Role::worker) {
    jobs_.at(node.run)->worker_died(node.rank, how);
    jobs_.at(node.run)->maybe_start();
  }
  if (node.role == Role::server) {
    gone_servers_.add(clock_.now(), *servers_.find(node.server), plainly_lost ? "connection lost" : how);
    bury_server(node.server, how);
  }
  forget_node(death.node);
  retry_waiting_ = true;
}

void SchedulerCore::bury_cut_off(const Outbox::CutOff& worker) {
  const auto it = nodes_.find(worker.worker);
  if (it == nodes_.end() || it->second.role != Role::worker) return;
  Node& node = it->second;
  node.offence = worker.how;
  if (const PeerId peer = std::exchange(node.peer, {}); peer.value != 0) {
    outbox_.send(peer, Refused{ErrorCode::peer_lost, "you were declared dead: " + worker.why, worker.advice});
    close(peer);
  }
  bury({worker.worker});
}

void SchedulerCore::bury_server(ServerId id, const std::string& how) {
  servers_.find(id)->peer = PeerId{};  // nothing more goes there
  const ServerRecord server = *servers_.find(id);
  bool logged = false;
  for (const JobRun run : server.jobs) {
    Job* const job = find_job(run);
    if (job != nullptr && job->server_died(server, how)) logged = true;
  }
  if (!logged) outbox_.log(LogLevel::warn, fmt::format("{} is gone: {}", to_string(server), how));
  tell_gone(server, make_error(ErrorCode::peer_lost, fmt::format("{} is gone: {}", to_string(server), how)));
  servers_.remove(id);
}

void SchedulerCore::settle(TimePoint now) {
  for (;;) {
    for (const Incarnation worker : outbox_.take_gone()) {
      const auto node = nodes_.find(worker);
      if (node == nodes_.end() || node->second.role != Role::worker) continue;
      make_done(node->second);
      if (node->second.peer.value == 0) forget_node(worker);
    }
    for (const Outbox::CutOff& worker : outbox_.take_cut_off())
      bury_cut_off(worker);
    for (const ServerId server : outbox_.take_refused_drains())
      tell_kept(server);
    for (const Outbox::Absent& absent : outbox_.take_absent())
      add_absent(now, absent);
    for (const ServerId server : outbox_.take_taken()) {
      if (server.value <= kMaxClaimedServer) skip_number(server);
    }
    try_recover(now);
    const auto ended = outbox_.take_ended_runs();
    for (const JobRun run : ended)
      retire(run);
    if (!std::exchange(retry_waiting_, false) && !outbox_.has_cut_off()) return;
    retry_waiting(now);
  }
}

void SchedulerCore::retire(JobRun run) {
  const auto it = jobs_.find(run);
  const Job& job = *it->second;
  // Also those that are on their way back to it, and no members yet.
  std::vector<Incarnation> workers;
  for (const auto& [incarnation, node] : nodes_) {
    if (node.role == Role::worker && node.run == run) workers.push_back(incarnation);
  }
  for (const Incarnation worker : workers) {
    Node& node = nodes_.at(worker);
    make_done(node);
    // One that is saying back what it knows has not heard of the end.
    const auto peer = peers_.find(node.peer);
    if (peer != peers_.end() && peer->second.worker_report != nullptr) {
      const Error& error = job.end_error();
      const bool failed = error.code != ErrorCode::ok;
      refuse(peer->first, failed ? error : make_error(ErrorCode::peer_lost, "the job has ended"));
      node.peer = PeerId{};
    }
    if (node.peer.value == 0) forget_node(worker);
  }
  if (disowned_.erase(run) == 0) ended_runs_.push_back({run, job.name(), job.end_error()});
  if (ended_runs_.size() > kMaxEndedRuns) ended_runs_.pop_front();
  ++state_changes_;
  recovering_.erase(run);
  run_of_name_.erase(job.name());
  jobs_.erase(it);
  retry_waiting_ = true;
}

void SchedulerCore::make_done(Node& node) {
  node.role = Role::done;
  --worker_count_;
  if (const auto peer = peers_.find(node.peer); peer != peers_.end()) peer->second.role = Role::done;
}

void SchedulerCore::forget_node(Incarnation incarnation) {
  const auto it = nodes_.find(incarnation);
  if (it == nodes_.end()) return;
  if (it->second.role == Role::worker) --worker_count_;
  if (it->second.role == Role::admin) --admin_count_;
  detector_.remove(incarnation);
  nodes_.erase(it);
}

}  // namespace bps

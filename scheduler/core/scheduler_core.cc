#include "scheduler/core/scheduler_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "proto/base/config/units.h"

namespace bps {
namespace {

constexpr std::uint32_t kMaxClaimedServer = std::uint32_t{1}
                                            << 24;  // by a worker: numbers are not its to use up

Error unexpected(const Message& message, const char* from) {
  return make_error(ErrorCode::protocol, fmt::format("{} from {}", name_of(message), from),
                    "run the same bps version everywhere");
}

}  // namespace

SchedulerCore::SchedulerCore(CoreOptions options, std::function<std::uint64_t()> random)
    : tables_(std::move(options), random()),
      clock_(tables_.options.tick),
      drains_(tables_),
      endings_(tables_, drains_),
      attachment_(tables_, endings_, drains_),
      end_(tables_),
      admission_(tables_, attachment_, endings_, end_, std::move(random)),
      waits_(tables_),
      overview_(tables_) {}

SchedulerState SchedulerCore::state() const {
  SchedulerState state{term().number, tables_.succession.last_server(), tables_.awaited.runs()};
  for (const auto& [run, job] : tables_.runs.all())
    state.runs.emplace(run, SchedulerState::Run{job->name()});
  return state;
}

// ---- events ----

void SchedulerCore::message(TimePoint now, PeerId peer, Message&& message) {
  now = clock_.advance(now);
  Peer* const from = tables_.peers.find(peer);
  if (from == nullptr) return;
  tables_.nodes.detector().heard(from->incarnation, now);
  handle(now, peer, *from, message);
  settle(now);
  waits_.carry_on(now);
}

void SchedulerCore::lost(TimePoint now, PeerId peer, const Error& reason) {
  now = clock_.advance(now);
  const Peer* const known = tables_.peers.find(peer);
  if (known == nullptr) return;
  tables_.outbox.log(LogLevel::debug, fmt::format("{}: {}", known->address, reason.message));
  endings_.lose(now, peer, {});
  settle(now);
}

void SchedulerCore::expel(TimePoint now, PeerId peer, const Error& reason) {
  now = clock_.advance(now);
  endings_.drop(now, peer, reason);
  settle(now);
}

// A node without connection may be one of those that are about to send a hello. But anybody can do that at
// any time: so it has its grace once more, and what the scheduler is late by, at most the time of a silent
// one.
bool SchedulerCore::may_be_unread(Incarnation node, Duration overdue, const Unread& unread) {
  const Node* const found = tables_.nodes.find(node);
  if (found == nullptr) return false;
  if (found->peer.value != 0) return unread.from && unread.from(found->peer);
  const FailureDetector::Options& detector = tables_.options.detector;
  const Duration grace = std::min(detector.reconnect_grace + overview_.lag(), detector.heartbeat_deadline);
  return overdue < grace && unread.from_newcomers && unread.from_newcomers();
}

void SchedulerCore::tick(TimePoint now, const Unread& unread) {
  now = clock_.advance(now);
  const auto excuse = [&](Incarnation node, Duration overdue) {
    return may_be_unread(node, overdue, unread);
  };
  for (const FailureDetector::Death& death : tables_.nodes.detector().expire(now, excuse))
    endings_.die(now, death);
  for (const auto& [run, job] : tables_.runs.all())
    job->tick(now);
  settle(now);
  admission_.expire(now);
  attachment_.expire(now, unread.from);
  if (tables_.awaited.expire(now)) tables_.newcomers.retry_soon();
  overview_.tick(now);
  end_.tick(now);
  tables_.queries.tick(now);
  waits_.carry_on(now);
  tables_.peers.send_heartbeats(now);
}

void SchedulerCore::stop(TimePoint now, const Error& reason) {
  end_.begin(clock_.advance(now), reason);
  for (const auto& [run, job] : tables_.runs.all())
    job->fail(reason);
  for (const JobRun run : tables_.outbox.take_ended_runs())
    endings_.end_run(run);
  tables_.peers.refuse_all_but_administrators(reason, end_.reason_for_server());
  tables_.awaited.clear();
  tables_.nodes.clear();
  tables_.servers.clear();
  drains_.clear();
}

// What one part leaves to others may leave more.
void SchedulerCore::settle(TimePoint now) {
  for (;;) {
    for (const Incarnation worker : tables_.outbox.take_gone())
      endings_.let_go(worker);
    for (const Outbox::CutOff& worker : tables_.outbox.take_cut_off())
      endings_.cut_off(now, worker);
    for (const ServerId server : tables_.outbox.take_refused_drains())
      drains_.kept(server);
    for (const Outbox::Absent& absent : tables_.outbox.take_absent())
      attachment_.expect(now, absent);
    for (const ServerId server : tables_.outbox.take_taken()) {
      if (server.value <= kMaxClaimedServer) tables_.succession.skip_to(server);
    }
    try_recover(now);
    for (const JobRun run : tables_.outbox.take_ended_runs())
      endings_.end_run(run);
    if (!tables_.newcomers.take_retry() && !tables_.outbox.has_cut_off()) return;
    admission_.retry(now);
  }
}

void SchedulerCore::try_recover(TimePoint now) {
  const std::set<JobRun> recovering = tables_.runs.recovering();
  for (const JobRun run : recovering) {
    Job& job = tables_.runs.at(run);
    job.try_recover(now);
    if (job.phase() == Job::Phase::recovering) continue;
    tables_.runs.has_recovered(run);
    tables_.newcomers.retry_soon();
    for (auto& [rank, message] : job.held().take()) {
      const auto& workers = job.membership().workers();
      const auto worker = workers.find(rank);
      if (job.ended() || worker == workers.end() || worker->second.peer.value == 0) continue;
      on_worker(now, worker->second.peer, tables_.nodes.at(worker->second.incarnation), message);
    }
  }
}

// ---- messages ----

void SchedulerCore::handle(TimePoint now, PeerId id, Peer& peer, Message& message) {
  switch (peer.role) {
    case PeerRole::greeting:
      if (auto* worker = std::get_if<HelloWorker>(&message)) return admission_.greet(now, id, *worker);
      if (auto* server = std::get_if<HelloServer>(&message)) return admission_.greet(now, id, *server);
      if (auto* admin = std::get_if<HelloAdmin>(&message)) return admission_.greet(now, id, *admin);
      return endings_.drop(now, id, unexpected(message, "a peer that has not said hello"));
    case PeerRole::waiting:
      if (std::holds_alternative<Heartbeat>(message)) return;
      if (!std::holds_alternative<Leave>(message))
        return endings_.drop(now, id, unexpected(message, "a worker that waits"));
      tables_.outbox.send(id, Left{});
      return tables_.peers.close(id);
    case PeerRole::worker:
      if (attachment_.take_report(now, id, peer, message)) return;
      return on_worker(now, id, tables_.nodes.at(peer.incarnation), message);
    case PeerRole::server:
      if (attachment_.take_report(now, id, peer, message)) return;
      return on_server(now, id, tables_.nodes.at(peer.incarnation), message);
    case PeerRole::admin: return on_admin(now, id, message);
    case PeerRole::done:
      if (const auto* query = std::get_if<AskWaits>(&message))
        tables_.outbox.send(id, Waits{query->request, {}, {}, 0, {}});
      // What it asked while the end was under way to it is answered by that.
      if (std::holds_alternative<Leave>(message)) tables_.outbox.send(id, Left{});
      return;
  }
}

void SchedulerCore::on_worker(TimePoint now, PeerId id, const Node& node, Message& message) {
  Job& job = tables_.runs.at(node.run);
  Status status;
  if (job.phase() == Job::Phase::recovering && !std::holds_alternative<Heartbeat>(message)) {
    status = job.held().hold(node.rank, message);
  } else if (auto* declare = std::get_if<Declare>(&message)) {
    status = job.declare(node.rank, *declare);
  } else if (const auto* failed = std::get_if<TensorFailed>(&message)) {
    status = job.tensor_failed(node.rank, *failed);
  } else if (const auto* open = std::get_if<OpenCalls>(&message)) {
    status = job.called(node.rank, *open);
  } else if (const auto* made = std::get_if<CallsMade>(&message)) {
    status = job.called(node.rank, *made);
  } else if (const auto* joined = std::get_if<RankJoined>(&message)) {
    status = job.called(node.rank, *joined);
  } else if (const auto* drop = std::get_if<DropTensors>(&message)) {
    status = job.drop_tensors(node.rank, *drop);
  } else if (auto* barrier = std::get_if<Barrier>(&message)) {
    status = job.barrier(node.rank, barrier->number);
  } else if (std::holds_alternative<Leave>(message)) {
    const bool frees_rank = job.phase() == Job::Phase::gathering;
    job.worker_left(node.rank);
    job.maybe_start();
    if (frees_rank) tables_.newcomers.retry_soon();  // else they wait for the end of the run
  } else if (const auto* lane = std::get_if<LaneLost>(&message)) {
    status = job.lane_lost(now, node.rank, *lane);
  } else if (const auto* settled = std::get_if<Settled>(&message)) {
    status = job.settled(node.rank, settled->number);
    job.maybe_start();  // a server that drains may have waited for the one that is gone now
  } else if (auto* query = std::get_if<AskWaits>(&message)) {
    query->job = job.name();
    return waits_.ask(now, id, std::move(*query));
  } else if (!std::holds_alternative<Heartbeat>(message)) {
    status = unexpected(message, "a worker");
  }
  if (!status) endings_.drop(now, id, status.error());
}

void SchedulerCore::on_server(TimePoint now, PeerId id, const Node& node, Message& message) {
  if (std::holds_alternative<Heartbeat>(message)) return;
  ServerRecord& server = *tables_.servers.find(node.server);
  if (std::holds_alternative<Leave>(message)) {
    if (!server.draining) {
      tables_.outbox.log(LogLevel::info, fmt::format("{} drains; used by {}", to_string(server),
                                                     counted(server.jobs.size(), "job")));
    }
    tables_.servers.drain(node.server);
    for (const JobRun run : std::set<JobRun>(server.jobs)) {
      if (Job* job = tables_.runs.find(run)) job->server_drains(server);
    }
    return;
  }
  if (const auto* open = std::get_if<OpenRounds>(&message))
    return tables_.queries.answered(node.server, *open);
  const auto* ack = std::get_if<Ack>(&message);
  if (ack == nullptr) return endings_.drop(now, id, unexpected(message, "a server"));
  const auto request = server.unacknowledged.find(ack->request);
  if (request == server.unacknowledged.end()) {
    return endings_.drop(
        now, id,
        make_error(ErrorCode::protocol, fmt::format("Ack of request {}, which is not open", ack->request)));
  }
  const JobRun run = request->second.run;
  server.unacknowledged.erase(request);
  if (Job* job = tables_.runs.find(run)) job->server_acked(node.server, ack->request, ack->error);
}

void SchedulerCore::on_admin(TimePoint now, PeerId id, Message& message) {
  if (std::holds_alternative<Heartbeat>(message)) return;
  if (auto* query = std::get_if<AskWaits>(&message)) return waits_.ask(now, id, std::move(*query));
  if (const auto* query = std::get_if<AskCluster>(&message))
    return tables_.outbox.send(id, overview_.state(now, query->request));
  if (const auto* drain = std::get_if<Drain>(&message)) return drains_.begin(id, *drain);
  if (const auto* end = std::get_if<EndCluster>(&message)) return end_.ask(id, *end);
  endings_.drop(now, id, unexpected(message, "an administrator"));
}

}  // namespace bps

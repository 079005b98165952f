#include "scheduler/core/endings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "proto/base/config/units.h"
#include "scheduler/text.h"

namespace bps {

// ---- peers ----

void Endings::drop(TimePoint now, PeerId id, const Error& error) {
  const Peer* const peer = tables_.peers.find(id);
  if (peer == nullptr) return;
  std::string text = fmt::format("{} is dropped: {}", peer->address, error.message);
  const bool is_known = peer->role != PeerRole::greeting && peer->role != PeerRole::waiting;
  is_known ? tables_.outbox.log(LogLevel::warn, std::move(text))
           : tables_.outbox.warn_limited(std::move(text));
  tables_.outbox.send(id, Refused{error.code, error.message, error.advice});
  tables_.outbox.close(id);
  lose(now, id, "dropped, because of: " + error.message);
}

void Endings::lose(TimePoint now, PeerId id, const std::string& expelled_for) {
  const Peer peer = tables_.peers.take(id);
  Node* const node = tables_.nodes.find(peer.incarnation);
  if (node == nullptr) return;
  node->peer = PeerId{};
  node->expelled_for = expelled_for;
  if (peer.role == PeerRole::done || peer.role == PeerRole::admin)
    return tables_.nodes.forget(peer.incarnation);
  tables_.nodes.detector().connection_lost(peer.incarnation, now);
  if (peer.role == PeerRole::worker) return tables_.runs.at(node->run).worker_suspected(node->rank);
  ServerRecord& server = *tables_.servers.find(node->server);
  server.peer = PeerId{};
  tables_.awaited.forget(node->server);
  if (!server.draining || !server.jobs.empty()) return;
  server_left(now, server);
  tables_.servers.remove(node->server);
  tables_.nodes.forget(peer.incarnation);
}

// ---- nodes ----

void Endings::die(TimePoint now, const FailureDetector::Death& death) {
  const Node* const found = tables_.nodes.find(death.node);
  if (found == nullptr) return;  // went with something that died before
  const Node node = *found;
  std::string how = death.connection_lost ? fmt::format("connection lost {} ago", seconds_text(death.since))
                                          : fmt::format("no heartbeat for {}", seconds_text(death.since));
  const bool plainly_lost = death.connection_lost && !node.absent && node.expelled_for.empty();
  if (node.absent) how = "it has not come back since the scheduler was started again";
  if (!node.expelled_for.empty()) how = node.expelled_for;
  if (node.peer.value != 0) {
    tables_.outbox.send(node.peer,
                        Refused{ErrorCode::peer_lost, fmt::format("you were declared dead: {}", how),
                                "the process or its network hung; start it again"});
    tables_.peers.close(node.peer);
  }
  if (node.role == PeerRole::worker) {
    tables_.runs.at(node.run).worker_died(node.rank, how);
    tables_.runs.at(node.run).maybe_start();
  }
  if (node.role == PeerRole::server) {
    tables_.gone_servers.add(now, *tables_.servers.find(node.server), plainly_lost ? "connection lost" : how);
    server_died(node.server, how);
  }
  tables_.nodes.forget(death.node);
  tables_.newcomers.retry_soon();
}

void Endings::cut_off(TimePoint now, const Outbox::CutOff& worker) {
  Node* const node = tables_.nodes.find(worker.worker);
  if (node == nullptr || node->role != PeerRole::worker) return;
  node->expelled_for = worker.how;
  if (const PeerId peer = std::exchange(node->peer, {}); peer.value != 0) {
    tables_.outbox.send(
        peer, Refused{ErrorCode::peer_lost, "you were declared dead: " + worker.why, worker.advice});
    tables_.peers.close(peer);
  }
  die(now, {worker.worker});
}

void Endings::replace(const HelloServer& successor) {
  const auto& servers = tables_.servers.all();
  const auto it = std::find_if(servers.begin(), servers.end(),
                               [&](const auto& entry) { return entry.second.endpoint == successor.data; });
  if (it == servers.end()) return;
  expel(it->second, make_error(ErrorCode::peer_lost, "another server has registered with your address"),
        "another process serves its address now");
}

void Endings::make_room(const ServerRecord& newcomer) {
  expel(newcomer,
        make_error(ErrorCode::peer_lost,
                   fmt::format("a server that was there before the scheduler was started again is server {}",
                               newcomer.id.value),
                   "start it again"),
        "its number is that of a server that was there before the scheduler was started again");
}

void Endings::expel(const ServerRecord& server, Error error, const std::string& how) {
  const ServerRecord old = server;
  if (old.peer.value != 0) {
    tables_.outbox.send(old.peer, Refused{error.code, std::move(error.message), std::move(error.advice)});
    tables_.peers.close(old.peer);
  }
  server_died(old.id, how);
  tables_.nodes.forget(old.incarnation);
}

// It was drained, or nobody used it.
void Endings::server_left(TimePoint now, const ServerRecord& server) {
  tables_.outbox.log(LogLevel::info, fmt::format("{} left", to_string(server)));
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
  tables_.gone_servers.add(now, server, std::move(how));
}

void Endings::server_died(ServerId id, const std::string& how) {
  tables_.servers.find(id)->peer = PeerId{};  // nothing more goes there
  const ServerRecord server = *tables_.servers.find(id);
  bool logged = false;
  for (const JobRun run : server.jobs) {
    Job* const job = tables_.runs.find(run);
    if (job != nullptr && job->server_died(server, how)) logged = true;
  }
  if (!logged) tables_.outbox.log(LogLevel::warn, fmt::format("{} is gone: {}", to_string(server), how));
  tell_gone(server, make_error(ErrorCode::peer_lost, fmt::format("{} is gone: {}", to_string(server), how)));
  tables_.servers.remove(id);
}

void Endings::tell_gone(const ServerRecord& server, const Error& error) {
  tables_.queries.server_gone(server.id);
  drains_.gone(server, error);
}

// ---- workers of runs ----

void Endings::let_go(Incarnation worker) {
  Node* const node = tables_.nodes.find(worker);
  if (node == nullptr || node->role != PeerRole::worker) return;
  make_done(*node);
  if (node->peer.value == 0) tables_.nodes.forget(worker);
}

void Endings::end_run(JobRun run) {
  const Error& error = tables_.runs.at(run).end_error();
  // Also those that are on their way back to it, and no members yet.
  for (const Incarnation worker : tables_.nodes.workers_of(run)) {
    Node& node = tables_.nodes.at(worker);
    make_done(node);
    // One that is reporting what it knows has not learned of the end.
    const Peer* const peer = tables_.peers.find(node.peer);
    if (peer != nullptr && peer->worker_report != nullptr) {
      const bool failed = error.code != ErrorCode::ok;
      tables_.peers.refuse(node.peer, failed ? error : make_error(ErrorCode::peer_lost, "the job has ended"));
      node.peer = PeerId{};
    }
    if (node.peer.value == 0) tables_.nodes.forget(worker);
  }
  tables_.runs.forget(run);
  tables_.newcomers.retry_soon();
}

void Endings::make_done(Node& worker) {
  tables_.nodes.make_done(worker);
  if (Peer* const peer = tables_.peers.find(worker.peer)) peer->role = PeerRole::done;
}

}  // namespace bps

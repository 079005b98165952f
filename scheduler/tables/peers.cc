#include "scheduler/tables/peers.h"

#include <fmt/format.h>

#include <utility>

#include "proto/wire/timing.h"

namespace bps {

Peer* Peers::find(PeerId id) {
  const auto it = peers_.find(id);
  return it == peers_.end() ? nullptr : &it->second;
}

bool Peers::is_admin(PeerId id) const {
  const auto it = peers_.find(id);
  return it != peers_.end() && it->second.role == PeerRole::admin;
}

std::vector<PeerId> Peers::late(TimePoint now) const {
  std::vector<PeerId> late;
  for (const auto& [id, peer] : peers_) {
    if (peer.reports() && now >= peer.report_until) late.push_back(id);
  }
  return late;
}

void Peers::become(PeerId id, PeerRole role, Incarnation incarnation) {
  Peer& peer = peers_.at(id);
  peer.role = role;
  peer.incarnation = incarnation;
}

void Peers::send_heartbeats(TimePoint now) {
  if (now < next_heartbeat_) return;
  next_heartbeat_ = now + kHeartbeatInterval;
  const auto heartbeat = std::make_shared<const Message>(Heartbeat{heartbeat_sequence_++});
  for (const auto& [id, peer] : peers_) {
    // Before its Welcome a worker expects nothing else.
    if (peer.role != PeerRole::greeting && peer.role != PeerRole::waiting) outbox_.send(id, heartbeat);
  }
}

void Peers::close(PeerId id) {
  queries_.peer_gone(id);
  outbox_.close(id);
  newcomers_.remove(id);
  peers_.erase(id);
}

void Peers::refuse(PeerId id, const Error& error) {
  outbox_.warn_limited(fmt::format("{} is refused: {}", peers_.at(id).address, error.message));
  outbox_.send(id, Refused{error.code, error.message, error.advice});
  close(id);
}

Peer Peers::take(PeerId id) {
  Peer peer = std::move(peers_.at(id));
  newcomers_.remove(id);
  queries_.peer_gone(id);
  peers_.erase(id);
  return peer;
}

void Peers::refuse_all_but_administrators(const Error& reason, const Error& for_server) {
  for (const auto& [id, peer] : peers_) {
    if (peer.role == PeerRole::admin) continue;
    const Error& error = peer.role == PeerRole::server ? for_server : reason;
    outbox_.send(id, Refused{error.code, error.message, error.advice});
    outbox_.close(id);
  }
  std::erase_if(peers_, [](const auto& entry) { return entry.second.role != PeerRole::admin; });
  newcomers_.clear();
  queries_ = {};
}

std::vector<PeerId> Peers::administrators() const {
  std::vector<PeerId> administrators;
  for (const auto& [id, peer] : peers_) {
    if (peer.role == PeerRole::admin) administrators.push_back(id);
  }
  return administrators;
}

}  // namespace bps

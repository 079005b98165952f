// Control connections that are open, and what is at their other end. A peer that is closed or lost is
// forgotten at once, with its hello that waits and its open queries; what becomes of its node is not decided
// here.
//
// Owner: the core's Tables. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/base/error.h"
#include "proto/base/loop/event_loop.h"
#include "scheduler/actions.h"
#include "scheduler/report.h"
#include "scheduler/tables/newcomers.h"
#include "scheduler/tables/nodes.h"
#include "scheduler/tables/server_queries.h"

namespace bps {

struct Peer {
  std::string address;
  PeerRole role = PeerRole::greeting;
  Incarnation incarnation;  // worker, server, admin, done
  // It reports what it was told; not there for its run before that has ended.
  std::unique_ptr<WorkerReport> worker_report;
  std::unique_ptr<ServerReport> server_report;
  TimePoint report_until;

  bool reports() const { return worker_report != nullptr || server_report != nullptr; }
};

class Peers {
 public:
  Peers(Outbox& outbox, Newcomers& newcomers, ServerQueries& queries)
      : outbox_(outbox), newcomers_(newcomers), queries_(queries) {}
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  void connected(PeerId id, std::string address) { peers_[id].address = std::move(address); }
  Peer* find(PeerId id);
  Peer& at(PeerId id) { return peers_.at(id); }
  bool is_admin(PeerId id) const;
  std::size_t size() const { return peers_.size(); }
  // Those that have not reported in time.
  std::vector<PeerId> late(TimePoint now) const;

  // Its hello is accepted.
  void become(PeerId id, PeerRole role, Incarnation incarnation);

  void send_heartbeats(TimePoint now);

  void close(PeerId id);
  // Closed, with the reason.
  void refuse(PeerId id, const Error& error);
  // Its connection is no more.
  Peer take(PeerId id);
  // The scheduler stops.
  void refuse_all_but_administrators(const Error& reason, const Error& for_server);
  std::vector<PeerId> administrators() const;

 private:
  Outbox& outbox_;
  Newcomers& newcomers_;
  ServerQueries& queries_;
  std::map<PeerId, Peer> peers_;
  TimePoint next_heartbeat_{};
  std::uint64_t heartbeat_sequence_ = 0;
};

}  // namespace bps

// Workers, servers and administrators: each has an incarnation, and lives until it is dead, with or without a
// connection. The failure detector watches all of them.
//
// Owner: the core's Tables. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/loop/event_loop.h"
#include "scheduler/actions.h"
#include "scheduler/server_table.h"
#include "scheduler/tables/failure_detector.h"

namespace bps {

enum class PeerRole : std::uint8_t {
  greeting,  // has said nothing yet: no node
  waiting,   // a worker whose hello waits: no node
  worker,
  server,
  admin,
  done,  // a worker that has left, or whose run has ended
};

struct Node {
  PeerRole role = PeerRole::worker;
  PeerId peer;  // 0: lost
  JobRun run;
  Rank rank;
  ServerId server;
  std::string expelled_for;  // empty: it was not expelled
  bool absent = false;       // was there before this scheduler, and has not come back
};

class Nodes {
 public:
  explicit Nodes(FailureDetector::Options options) : detector_(options) {}

  // One that is not there yet; its silence counts from `heard`.
  void add(Incarnation incarnation, Node node, TimePoint heard);
  bool has(Incarnation incarnation) const { return nodes_.count(incarnation) != 0; }
  Node* find(Incarnation incarnation);
  Node& at(Incarnation incarnation) { return nodes_.at(incarnation); }
  // A worker: it has left, or its run has ended.
  void make_done(Node& worker);
  // Of one that is not there: nothing.
  void forget(Incarnation incarnation);
  void clear();

  // Also those that are on their way back to the run, and no members yet.
  std::vector<Incarnation> workers_of(JobRun run) const;
  // A worker or server may be about to connect again.
  bool any_without_connection() const;
  std::size_t worker_count() const { return worker_count_; }
  std::size_t admin_count() const { return admin_count_; }
  std::size_t size() const { return nodes_.size(); }

  FailureDetector& detector() { return detector_; }
  // Valid as long as this object.
  Silence silence_at(TimePoint now) const;

 private:
  std::map<Incarnation, Node> nodes_;
  FailureDetector detector_;
  std::size_t worker_count_ = 0;
  std::size_t admin_count_ = 0;
};

}  // namespace bps

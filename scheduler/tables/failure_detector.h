// Who is dead. A node (worker or server) is alive while its control connection stands and it is heard from; a
// lost connection makes it suspect; it is dead when the reconnect grace has passed since, or when it has been
// silent for the heartbeat deadline, connection or not.
//
// Silence counts only from what this process has read. An owner that is behind with reading says what waits
// to be read, and that node is not dead yet.
//
// All times come from one local monotonic clock that stands still while this process does (PauseClock);
// nothing a node says about time is believed. Owner: Nodes. Pure.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/loop/event_loop.h"
#include "proto/wire/timing.h"

namespace bps {

class FailureDetector {
 public:
  struct Options {
    Duration heartbeat_deadline = kHeartbeatTimeout;
    Duration reconnect_grace = std::chrono::milliseconds(300);
  };

  struct Death {
    Incarnation node;
    bool connection_lost = false;  // else silent
    Duration since{0};             // the loss, or the last word
    friend bool operator==(const Death&, const Death&) = default;
  };

  explicit FailureDetector(Options options) : options_(options) {}

  void add(Incarnation node, TimePoint now);
  void remove(Incarnation node) { nodes_.erase(node); }
  // Unknown nodes are ignored by all of these.
  void heard(Incarnation node, TimePoint now);
  void connection_lost(Incarnation node, TimePoint now);
  // It has another connection now.
  void connection_back(Incarnation node, TimePoint now);
  bool suspected(Incarnation node) const;
  // Since its last word, or since its connection was lost. Nothing of unknown nodes.
  std::optional<Duration> silence(Incarnation node, TimePoint now) const;

  // Asked of a node that is dead by the clock, `overdue` after its deadline: something that may be from it
  // has arrived, and was not read yet. True puts the deadline off.
  using Unread = std::function<bool(Incarnation, Duration overdue)>;
  // Takes out and returns the nodes that are dead at `now`, in the order of their incarnations.
  std::vector<Death> expire(TimePoint now, const Unread& unread = {});

  std::size_t size() const { return nodes_.size(); }

 private:
  struct Node {
    TimePoint heard;
    std::optional<TimePoint> lost;
  };
  TimePoint deadline_of(const Node& node) const;

  Options options_;
  std::map<Incarnation, Node> nodes_;
  TimePoint next_check_ = TimePoint::max();  // nobody dies before
};

}  // namespace bps

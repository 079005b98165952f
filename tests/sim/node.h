// Processes in virtual time. The simulator has one clock and one base loop; a node is one process on it, with
// its own loops (its threads), a clock that is off, and the ways in which processes fail: it stops for a
// while, or dies.
//
// A NodeLoop keeps its own queue and asks the base loop for turns, a short random time apart. So posts
// between two loops of a process take a random time and their tasks interleave differently with every seed,
// as threads do; timers and posts that are due together run in either order. Within one loop posts keep their
// order, as EventLoop promises.
//
// Owner: the simulated cluster. Lives on: the one real thread. The base loop must outlive the node, the node
// every object that uses its loops. in_loop() is exact: true only while a task of that loop runs, or while
// nobody's does.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/base/loop/event_loop.h"
#include "tests/sim/random.h"

namespace bps::sim {

class SimNode;

class NodeLoop final : public EventLoop {
 public:
  NodeLoop(SimNode& node, EventLoop& base, Random random);
  ~NodeLoop() override;
  NodeLoop(const NodeLoop&) = delete;
  NodeLoop& operator=(const NodeLoop&) = delete;

  TimePoint now() const override;
  void post(Task task) override;
  TimerId at(TimePoint when, Task task) override;
  void cancel(TimerId timer) override;
  bool in_loop() const override;

  SimNode& node() const { return node_; }
  // The loop whose task is running, or nullptr.
  static NodeLoop* current();

 private:
  friend class SimNode;
  struct Timer {
    Task task;
    TimerId base;
  };

  void take_turn();
  void run_turn();
  void run(Task task);
  void drop_everything();

  SimNode& node_;
  EventLoop& base_;
  Random random_;
  std::deque<Task> posts_;
  std::deque<std::uint64_t> due_;  // timers whose time has come, by number
  std::map<std::uint64_t, Timer> timers_;
  std::uint64_t last_timer_ = 0;
  TimerId turn_;
};

class SimNode {
 public:
  // `host` is its address on the virtual network.
  SimNode(EventLoop& base, std::string name, std::string host, std::uint64_t seed);
  ~SimNode();
  SimNode(const SimNode&) = delete;
  SimNode& operator=(const SimNode&) = delete;

  const std::string& name() const { return name_; }
  const std::string& host() const { return host_; }

  NodeLoop& add_loop();
  NodeLoop& loop(std::size_t index = 0) { return *loops_.at(index); }
  const std::vector<std::unique_ptr<NodeLoop>>& loops() const { return loops_; }

  // SIGSTOP and SIGCONT: nothing runs in between, then everything that came due at once.
  void pause() { paused_ = true; }
  void resume();
  bool paused() const { return paused_; }

  // No task runs any more; those pending are destroyed, and those posted later too.
  void kill();
  bool alive() const { return alive_; }

  // The node's clock: an offset from the common one, and a rate that is wrong by `drift_ppm` from now on.
  void set_clock(Duration offset, std::int64_t drift_ppm);
  TimePoint local_of(TimePoint base) const;
  TimePoint base_of(TimePoint local) const;

 private:
  EventLoop& base_;
  std::string name_;
  std::string host_;
  Random random_;
  bool paused_ = false;
  bool alive_ = true;
  TimePoint origin_;
  Duration offset_{0};
  std::int64_t drift_ppm_ = 0;
  std::vector<std::unique_ptr<NodeLoop>> loops_;
};

}  // namespace bps::sim

#include "tests/sim/node.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "proto/base/assert.h"

namespace bps::sim {
namespace {

NodeLoop* g_current = nullptr;

}  // namespace

NodeLoop::NodeLoop(SimNode& node, EventLoop& base, Random random)
    : node_(node), base_(base), random_(random) {}

NodeLoop::~NodeLoop() { drop_everything(); }

NodeLoop* NodeLoop::current() { return g_current; }

TimePoint NodeLoop::now() const { return node_.local_of(base_.now()); }

bool NodeLoop::in_loop() const { return g_current == nullptr || g_current == this; }

void NodeLoop::post(Task task) {
  if (!node_.alive()) return;
  posts_.push_back(std::move(task));
  take_turn();
}

TimerId NodeLoop::at(TimePoint when, Task task) {
  BPS_ASSERT(in_loop());
  const std::uint64_t number = ++last_timer_;
  if (!node_.alive()) return TimerId{number};
  Timer& timer = timers_[number];
  timer.task = std::move(task);
  // A clock that runs slow or fast rounds; a timer must never run before its time on the node's own clock.
  timer.base = base_.at(node_.base_of(when) + Duration(1), [this, number] {
    due_.push_back(number);
    take_turn();
  });
  return TimerId{number};
}

void NodeLoop::cancel(TimerId timer) {
  BPS_ASSERT(in_loop());
  const auto found = timers_.find(timer.value);
  if (found == timers_.end()) return;
  base_.cancel(found->second.base);
  const Task dropped = std::move(found->second.task);  // may hold what cancels more
  timers_.erase(found);
}

void NodeLoop::take_turn() {
  if (turn_ || node_.paused() || !node_.alive()) return;
  if (posts_.empty() && due_.empty()) return;
  const std::int64_t most_ns = random_.one_in(16) ? 50'000 : 2'000;
  turn_ = base_.after(Duration(random_.between<std::int64_t>(100, most_ns)), [this] { run_turn(); });
}

void NodeLoop::run_turn() {
  turn_ = {};
  const bool timers_first = random_.one_in(2);
  for (std::uint64_t budget = random_.between<std::uint64_t>(1, 16); budget > 0; --budget) {
    if (node_.paused() || !node_.alive()) break;
    if (!due_.empty() && (timers_first || posts_.empty())) {
      const auto found = timers_.find(due_.front());
      due_.pop_front();
      if (found == timers_.end()) continue;  // cancelled
      Task task = std::move(found->second.task);
      timers_.erase(found);
      run(std::move(task));
    } else if (!posts_.empty()) {
      Task task = std::move(posts_.front());
      posts_.pop_front();
      run(std::move(task));
    }
  }
  take_turn();
}

void NodeLoop::run(Task task) {
  NodeLoop* const outer = std::exchange(g_current, this);
  task();
  task = nullptr;  // what it holds belongs to this loop, too
  g_current = outer;
}

void NodeLoop::drop_everything() {
  base_.cancel(std::exchange(turn_, {}));
  // What a dropped task owned may post, set and cancel while it goes.
  while (!timers_.empty() || !posts_.empty()) {
    for (const auto& [number, timer] : timers_)
      base_.cancel(timer.base);
    auto timers = std::exchange(timers_, {});
    auto posts = std::exchange(posts_, {});
  }
  due_.clear();
}

SimNode::SimNode(EventLoop& base, std::string name, std::string host, std::uint64_t seed)
    : base_(base), name_(std::move(name)), host_(std::move(host)), random_(seed), origin_(base.now()) {
  add_loop();
}

SimNode::~SimNode() { kill(); }

NodeLoop& SimNode::add_loop() {
  loops_.push_back(std::make_unique<NodeLoop>(*this, base_, random_.fork()));
  return *loops_.back();
}

void SimNode::resume() {
  paused_ = false;
  for (const auto& loop : loops_)
    loop->take_turn();
}

void SimNode::kill() {
  alive_ = false;
  for (const auto& loop : loops_)
    loop->drop_everything();
}

void SimNode::set_clock(Duration offset, std::int64_t drift_ppm) {
  BPS_ASSERT(drift_ppm > -100'000 && drift_ppm < 100'000);
  origin_ = base_.now();
  offset_ = offset;
  drift_ppm_ = drift_ppm;
}

TimePoint SimNode::local_of(TimePoint base) const {
  const Duration passed = base - origin_;
  return base + offset_ + Duration(passed.count() / 1'000'000 * drift_ppm_);
}

TimePoint SimNode::base_of(TimePoint local) const {
  const TimePoint never = origin_ + std::chrono::years(10);  // TimePoint::max() would overflow below
  const Duration passed = std::min(local, never) - offset_ - origin_;
  local = origin_ + offset_ + passed;
  Duration base = Duration(passed.count() / (1'000'000 + drift_ppm_) * 1'000'000);
  // The clock advances in steps of a millisecond: go to the first instant that shows `local`.
  while (local_of(origin_ + base) < local)
    base += std::max(Duration(1), local - local_of(origin_ + base));
  return origin_ + base;
}

}  // namespace bps::sim

#include "proto/base/loop/virtual_loop.h"

#include <algorithm>
#include <utility>

namespace bps {

VirtualLoop::~VirtualLoop() {
  // What a task owns may post or cancel while it is destroyed.
  while (!tasks_.empty()) {
    const Task doomed = std::move(tasks_.front());
    tasks_.pop_front();
  }
  while (timers_.take_due(TimePoint::max(), timers_.last_id())) {}
}

bool VirtualLoop::step(TimePoint limit) {
  if (!tasks_.empty()) {
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    ++steps_;
    task();
    return true;
  }
  const auto next = timers_.next();
  if (!next || *next > limit) return false;
  now_ = std::max(now_, *next);
  const Task task = timers_.take_due(now_, timers_.last_id());
  ++steps_;
  task();
  return true;
}

void VirtualLoop::run_tasks() {
  while (!tasks_.empty())
    step(now_);
}

bool VirtualLoop::run_until_idle(std::uint64_t max_steps) {
  for (std::uint64_t i = 0; i < max_steps; ++i) {
    if (!step()) return true;
  }
  return tasks_.empty() && timers_.empty();
}

void VirtualLoop::run_until(TimePoint time) {
  while (step(time)) {}
  now_ = std::max(now_, time);
}

bool VirtualLoop::run_until(const std::function<bool()>& done, TimePoint deadline) {
  while (!done()) {
    if (!step(deadline)) {
      now_ = std::max(now_, deadline == TimePoint::max() ? now_ : deadline);
      return done();
    }
  }
  return true;
}

}  // namespace bps

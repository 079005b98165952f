// An event loop in virtual time: nothing happens until it is told to run, and time jumps to the next timer.
// Two runs of the same program are equal, step by step.
//
// Order: all posted tasks in posting order, then the earliest timer (equal times: the one set first), then
// again. Owner and thread: the test. Not thread-safe: post() too must come from the test's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "proto/base/loop/event_loop.h"
#include "proto/base/loop/timer_queue.h"

namespace bps {

class VirtualLoop final : public EventLoop {
 public:
  VirtualLoop() = default;
  explicit VirtualLoop(TimePoint start) : now_(start) {}
  ~VirtualLoop() override;

  TimePoint now() const override { return now_; }
  void post(Task task) override { tasks_.push_back(std::move(task)); }
  TimerId at(TimePoint when, Task task) override { return timers_.add(when, std::move(task)); }
  void cancel(TimerId timer) override { timers_.cancel(timer); }
  bool in_loop() const override { return true; }

  // Runs one task or, when there is none, the next timer that is due by `limit`. False if there was nothing
  // to do.
  bool step(TimePoint limit = TimePoint::max());

  // Runs tasks, not timers: what the present moment still has to do.
  void run_tasks();

  // Runs everything until no task and no timer is left. Periodic timers never end: see max_steps. False if it
  // was still busy after that many steps.
  bool run_until_idle(std::uint64_t max_steps = 1'000'000);

  // Runs up to and including `time`; now() is `time` afterwards.
  void run_until(TimePoint time);
  void run_for(Duration duration) { run_until(now_ + duration); }

  // Runs until `done()` holds, checking before each step; false if `deadline` came first or nothing was left
  // to do.
  bool run_until(const std::function<bool()>& done, TimePoint deadline);

  std::uint64_t steps() const { return steps_; }
  std::size_t pending_timers() const { return timers_.size(); }

 private:
  TimePoint now_{};
  std::uint64_t steps_ = 0;
  std::deque<Task> tasks_;
  TimerQueue timers_;
};

}  // namespace bps

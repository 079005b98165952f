// Everything that runs in bps runs on an event loop: one thread that executes tasks, timers and IO
// callbacks one after another. Code written against this interface runs unchanged on a real thread
// (AsioLoop) and in virtual time (VirtualLoop), which is what makes the simulator possible.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace bps {

// Monotonic local time. Never compared between processes.
using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

using Task = std::function<void()>;

// Handle of a pending timer; 0 is "none".
struct TimerId {
  std::uint64_t value = 0;
  explicit operator bool() const { return value != 0; }
};

class EventLoop {
 public:
  virtual ~EventLoop() = default;

  // Any thread.
  virtual TimePoint now() const = 0;

  // Any thread. Runs `task` on the loop, after the caller's current task, in posting order. Tasks
  // posted to a loop that has stopped are destroyed, not run.
  virtual void post(Task task) = 0;

  // Loop thread only. Runs `task` once at `when` or as soon after as possible.
  virtual TimerId at(TimePoint when, Task task) = 0;
  TimerId after(Duration delay, Task task) { return at(now() + delay, std::move(task)); }

  // Loop thread only. After it returns the task does not run. Cancelling a timer that has run, or none, is
  // fine.
  virtual void cancel(TimerId timer) = 0;

  // Any thread. If nobody runs the loop just now: runs `task`, and what it posts, on the caller's thread.
  // False: it has not run.
  virtual bool run_here(const Task& task) {
    static_cast<void>(task);
    return false;
  }

  // Debug aid: true on the loop's own thread, and before the loop runs.
  virtual bool in_loop() const = 0;
};

}  // namespace bps

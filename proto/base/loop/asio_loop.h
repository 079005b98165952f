// An event loop on a real thread: tasks, timers and socket readiness by boost::asio.
//
// A turn of the loop runs at most one handler of what is ready of the sockets, then the tasks and timers that
// are due, then the turn hooks, a few dozen at most, so that nothing starves. Hooks are how a connection
// sends everything that one turn queued, or a few when many do, with one system call.
//
// The io_context takes no locks: only the loop's thread may touch it. post() and stop() come
// from any thread, through a mailbox that wakes a sleeping loop once per burst. A loop that may share its
// LoopLock takes them. Any thread that holds the lock may touch it then, and is "the loop's thread". What
// such a thread gives another loop to do wakes that loop.
//
// Lives on: the thread that calls run(). Before run() and after it has returned the owner's thread counts as
// the loop's, so that things can be built and destroyed. What uses the loop (connections, timers' owners)
// dies first.
#pragma once

#include <cerrno>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>

#include "proto/base/loop/event_loop.h"
#include "proto/base/loop/loop_lock.h"
#include "proto/base/result.h"

namespace boost::asio {
class io_context;
}

namespace bps {

// Where other threads leave tasks for a loop. Outlives the loop, so a thread that works for it may hold
// one without knowing whether the loop is still there.
class Mailbox {
 public:
  virtual ~Mailbox() = default;
  // As EventLoop::post: after the loop has stopped, or is gone, the task is destroyed on the caller's thread.
  virtual void post(Task task) = 0;
};

// Something that wants to run once at the end of a turn, soon and in its order. It may be destroyed while it
// waits.
class TurnHook {
 public:
  TurnHook() = default;
  TurnHook(const TurnHook&) = delete;
  TurnHook& operator=(const TurnHook&) = delete;
  virtual ~TurnHook() { unlink(); }
  virtual void on_turn_end() = 0;

 private:
  friend class AsioLoop;
  void unlink();
  TurnHook* next_ = nullptr;
  TurnHook* previous_ = nullptr;  // non-null while it waits
};

class AsioLoop final : public EventLoop {
 public:
  // Fails by an assertion only if the process is out of file descriptors: use create() where that can be.
  AsioLoop();
  static Result<std::unique_ptr<AsioLoop>> create();
  // One of several that take turns.
  static Result<std::unique_ptr<AsioLoop>> create(std::shared_ptr<LoopLock> lock);
  ~AsioLoop() override;
  // What sockets need: `loop` must be an AsioLoop.
  static AsioLoop& of(EventLoop& loop);

  TimePoint now() const override { return std::chrono::steady_clock::now(); }
  void post(Task task) override;
  TimerId at(TimePoint when, Task task) override;
  void cancel(TimerId timer) override;
  bool in_loop() const override;

  // Runs until stop(); tasks posted before stop() still run.
  void run();
  // Another thread, in the place of the one that is in run(): until `done`, which it asks after each turn,
  // but not beyond `deadline`, and not longer than the loop is lent. Does nothing where a third thread does
  // so. Then nobody runs the loop for a moment, if `is_idle` (loop_handover.h). Like run() it does not throw.
  void run_until(TimePoint deadline, const std::function<bool()>& done,
                 const std::function<bool()>& is_idle) noexcept;
  bool run_here(const Task& task) noexcept override;
  // Any thread. May others run it? No, at first, and never when it shares its lock: what runs on another of
  // those loops would not wake who runs this one.
  void lend(bool may);
  // Any thread, any number of times.
  void stop();

  // One turn, which waits at most until `deadline` for something to do. For tests.
  void run_once(TimePoint deadline);

  void at_turn_end(TurnHook& hook);
  std::shared_ptr<Mailbox> mailbox() const;

  // Null for a loop that shares nothing.
  LoopLock* lock() const;
  // Runs `call`, a system call, without the loop lock. Of a callback, and what it returns.
  template <class Call>
  auto outside(Call&& call) {
    LoopLock* const mine = lock();
    if (mine == nullptr || !mine->is_shared()) return call();
    mine->unlock();
    const auto result = call();
    const int error = errno;
    mine->lock();
    errno = error;
    return result;
  }

  // For proto/transport/tcp and HTTP only. Loop thread only.
  boost::asio::io_context& io();

 private:
  struct Impl;
  explicit AsioLoop(std::unique_ptr<Impl> impl);
  void wake_if_elsewhere();
  std::unique_ptr<Impl> impl_;
};

// Calls back on the loop for each of `signals` that the process gets. Blocks them in the calling thread (make
// it in main before any other thread starts) and unblocks them at the end; a child that is spawned meanwhile
// must unblock them itself. One watcher per process.
class SignalWatcher {
 public:
  using Callback = std::function<void(int signal)>;
  static Result<std::unique_ptr<SignalWatcher>> watch(AsioLoop& loop, std::initializer_list<int> signals,
                                                      Callback callback);
  virtual ~SignalWatcher() = default;
};

}  // namespace bps

// The loop lock: what event loops share whose callbacks run one after another.
//
// The problem: one thread moves about 25 Gbit/s, nearly all of it in system calls; but what decides which
// bytes go where is a state machine that is written, and tested, for one thread. So several loops, each with
// a thread and sockets of its own, share a lock: a thread takes it before it runs a task, a timer or a
// callback, and gives it back while it waits and for system calls that move bytes (AsioLoop::outside). What
// lives on any of the loops may call what lives on another.
//
// Lives on: the threads of these loops. Until share() there is one, which begins no other before, and this
// locks nothing; but Asio locks its own, uncontended, on a loop that may share. Limits: a thread that holds
// the lock may wait for a system call of another loop, for nothing else.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

namespace bps {

class LoopLock {
 public:
  LoopLock() = default;
  LoopLock(const LoopLock&) = delete;
  LoopLock& operator=(const LoopLock&) = delete;

  // On the one loop so far, which has the lock from now to the end of its callback.
  void share() {
    if (is_shared()) return;
    is_shared_.store(true, std::memory_order_relaxed);
    lock();
  }
  bool is_shared() const { return is_shared_.load(std::memory_order_relaxed); }

  void lock() {
    mutex_.lock();
    holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  void unlock() {
    holder_.store(std::thread::id{}, std::memory_order_relaxed);
    mutex_.unlock();
  }
  bool is_mine() const { return holder_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> holder_{};
  std::atomic<bool> is_shared_{false};
};

// The loop lock, if there is one to share, for as long as this object lives.
class LoopLockScope {
 public:
  explicit LoopLockScope(LoopLock* lock) : lock_(lock) {
    if (lock_ != nullptr && lock_->is_shared()) lock_->lock();
  }
  // It may have begun to be shared meanwhile.
  ~LoopLockScope() {
    if (lock_ != nullptr && lock_->is_mine()) lock_->unlock();
  }
  LoopLockScope(const LoopLockScope&) = delete;
  LoopLockScope& operator=(const LoopLockScope&) = delete;

 private:
  LoopLock* const lock_;
};

}  // namespace bps

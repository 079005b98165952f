// What other threads and a loop share: with loop_lock.h the only mutexes and condition variables outside the
// standard library.
//
// Monitor<State>: a state behind a lock that can be waited on. Completion<T>: a value that is set once.
// MpscQueue<T>: many threads hand values to one consumer, which is woken only if it sleeps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "proto/base/loop/event_loop.h"

namespace bps {

// Any thread. The functions given run under the lock: short, and never calling back into the monitor.
template <class State>
class Monitor {
 public:
  Monitor() = default;
  explicit Monitor(State state) : state_(std::move(state)) {}
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  // Changes the state and wakes everyone who waits. Returns what `change(state)` returns. The notification is
  // under the lock so that a waiter may destroy the monitor as soon as it sees the change.
  template <class Change>
  decltype(auto) update(Change&& change) {
    const std::lock_guard lock(mutex_);
    struct Notify {
      std::condition_variable& changed;
      ~Notify() { changed.notify_all(); }
    } notify{changed_};
    return change(state_);
  }

  // As update, but those who wait sleep on until wake_all(), for which the caller keeps the monitor alive.
  template <class Change>
  decltype(auto) update_quietly(Change&& change) {
    const std::lock_guard lock(mutex_);
    return change(state_);
  }
  void wake_all() { changed_.notify_all(); }

  template <class Look>
  decltype(auto) read(Look&& look) const {
    const std::lock_guard lock(mutex_);
    return look(static_cast<const State&>(state_));
  }

  // Waits until `done(state)`; false if the deadline came first. `done` may take from the state.
  template <class Done>
  bool wait_until(TimePoint deadline, Done&& done) {
    std::unique_lock lock(mutex_);
    if (deadline == TimePoint::max()) {
      changed_.wait(lock, [&] { return done(state_); });
      return true;
    }
    return changed_.wait_until(lock, deadline, [&] { return done(state_); });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_{};
};

// One value, set once, waited for by any number of threads. Share it by std::shared_ptr.
template <class T>
class Completion {
 public:
  // The first value wins; false if there was one already.
  bool set(T value) {
    return cell_.update([&](std::optional<T>& cell) {
      if (cell) return false;
      cell = std::move(value);
      ready_.store(true, std::memory_order_release);
      return true;
    });
  }

  bool ready() const { return ready_.load(std::memory_order_acquire); }

  // True if the value is there; it expires nothing when it is not.
  bool wait_until(TimePoint deadline) {
    return ready() ||
           cell_.wait_until(deadline, [](const std::optional<T>& cell) { return cell.has_value(); });
  }

  // Only after ready() or a successful wait; the value does not change any more.
  T value() const {
    return cell_.read([](const std::optional<T>& cell) { return *cell; });
  }

 private:
  std::atomic<bool> ready_{false};
  Monitor<std::optional<T>> cell_;
};

// Any thread pushes, one consumer takes everything at once. The consumer sleeps by its own means (an
// eventfd):
//
//   queue.take(batch);
//   if (batch.empty() && queue.prepare_sleep()) { sleep; queue.awake(); }
//
// and `push` says `wake` to the one pusher that has to end that sleep, so a burst costs one wake-up. Not
// bounded: who pushes bounds what is outstanding.
template <class T>
class MpscQueue {
 public:
  enum class Pushed { queued, wake, closed };

  // `closed`: the value was not taken and is still the caller's.
  Pushed push(T&& value) {
    const std::lock_guard lock(mutex_);
    if (closed_) return Pushed::closed;
    values_.push_back(std::move(value));
    not_empty_.store(true, std::memory_order_relaxed);
    return std::exchange(asleep_, false) ? Pushed::wake : Pushed::queued;
  }

  // Consumer. Replaces `values` (empty, its capacity is recycled) with all that was pushed, in order.
  void take(std::vector<T>& values) {
    if (!not_empty_.load(std::memory_order_relaxed)) return;
    const std::lock_guard lock(mutex_);
    values_.swap(values);
    not_empty_.store(false, std::memory_order_relaxed);
  }

  // Consumer. False if there is something to take, or nothing will ever come: do not sleep.
  bool prepare_sleep() {
    const std::lock_guard lock(mutex_);
    if (!values_.empty() || closed_) return false;
    asleep_ = true;
    return true;
  }

  // Consumer, after it slept.
  void awake() {
    const std::lock_guard lock(mutex_);
    asleep_ = false;
  }

  // Any thread. Later pushes are refused; what is queued can still be taken. True if the consumer must be
  // woken.
  bool close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    return std::exchange(asleep_, false);
  }

 private:
  std::mutex mutex_;
  std::vector<T> values_;
  std::atomic<bool> not_empty_{false};
  bool asleep_ = false;
  bool closed_ = false;
};

}  // namespace bps

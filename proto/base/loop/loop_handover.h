// Who runs an event loop: its own thread, or for a while another one, which waits for what the loop does.
//
// The problem: an answer wakes the loop's thread, and that the thread that waits for the answer; each wake-up
// takes as long as a small exchange. A thread that runs the loop itself is woken by the answer.
//
// Own thread: it runs the loop, until another one wants it. Lent: another one runs it, and the own one sleeps
// until it is over. Vacant: nobody runs it, for kVacant, at most twice as long: a thread that takes it again
// and again does so without a wake-up, and who leaves something to do calls the own thread back. Whoever runs
// the loop is its thread (event_loop.h), and what the one before has done comes before.
//
// Owner: AsioLoop. Limits: a thread that has taken it gives it back.
#pragma once

#include <atomic>
#include <cstdint>

#include "proto/base/loop/completion.h"

namespace bps {

class LoopHandover {
 public:
  static constexpr Duration kVacant = std::chrono::milliseconds(1);

  // ---- the own thread ----

  // Another thread wants the loop: stand_aside() between two turns.
  bool is_wanted() const { return is_wanted_.load(std::memory_order_acquire); }
  // Returns when the own thread is to run the loop.
  void stand_aside() {
    const auto is_own = [this](State& state) {
      if (state.who == Who::wanted) state.lend();
      if (!state.is_home()) return false;
      is_wanted_.store(false, std::memory_order_release);
      return true;
    };
    while (!state_.update(is_own))
      wait_while_used();
  }
  // The loop has ended: nobody takes it any more.
  void end() {
    state_.update([](State& state) { state.who = Who::ended; });
  }

  // ---- another thread ----

  // It is vacant, and the caller's now.
  bool take_vacant() {
    if (!is_wanted()) return false;
    return state_.update_quietly([](State& state) {
      if (state.who != Who::vacant) return false;
      state.lend();
      return true;
    });
  }
  // Waits until the own thread stands aside, which `wake` wakes. False: a third thread has it or wants it,
  // it has ended, or the deadline has come.
  template <class Wake>
  bool take(TimePoint deadline, Wake&& wake) {
    if (take_vacant()) return true;
    const bool asks = state_.update_quietly([this](State& state) {
      if (state.who != Who::own) return false;
      state.who = Who::wanted;
      is_wanted_.store(true, std::memory_order_release);
      return true;
    });
    if (!asks) return false;
    wake();
    (void)state_.wait_until(deadline, [](const State& state) { return state.who != Who::wanted; });
    return state_.update([](State& state) {
      if (state.who == Who::wanted) state.who = Who::own;
      return state.who == Who::lent;
    });
  }
  // `leaves_nothing`: there is nothing to do before somebody leaves something; then it may become vacant.
  // Called under a lock.
  template <class LeavesNothing>
  void give_back(LeavesNothing&& leaves_nothing) {
    const bool is_needed = state_.update_quietly([&](State& state) {
      const bool goes_home = state.is_awaited || !leaves_nothing();
      state.who = goes_home ? Who::own : Who::vacant;
      return goes_home;
    });
    if (is_needed) state_.wake_all();
  }

  // Any thread: something has been left to do. A loop that is vacant goes back to its own thread.
  void recall() {
    if (!is_wanted()) return;
    const bool is_vacant = state_.update_quietly([](State& state) {
      if (state.who != Who::vacant) return false;
      state.who = Who::own;
      return true;
    });
    if (is_vacant) state_.wake_all();
  }

 private:
  enum class Who : std::uint8_t { own, wanted, lent, vacant, ended };
  struct State {
    Who who = Who::own;
    bool is_awaited = false;  // the own thread sleeps until it is given back
    std::uint64_t times = 0;  // that it has been lent

    void lend() {
      who = Who::lent;
      is_awaited = false;
      ++times;
    }
    bool is_home() const { return who == Who::own || who == Who::ended; }
  };

  // Returns now and then, so that nobody who takes it again and again wakes a thread.
  void wait_while_used() {
    const auto is_over = [](const State& state) { return state.is_home() || state.who == Who::wanted; };
    const std::uint64_t seen = state_.read([](const State& state) { return state.times; });
    if (state_.wait_until(std::chrono::steady_clock::now() + kVacant, is_over)) return;
    const bool is_long = state_.update_quietly([&](State& state) {
      if (state.times != seen) return false;
      if (state.who == Who::vacant) state.who = Who::own;
      state.is_awaited = state.who == Who::lent;
      return state.is_awaited;
    });
    if (is_long) (void)state_.wait_until(TimePoint::max(), is_over);
  }

  std::atomic<bool> is_wanted_{false};  // or lent, or vacant
  Monitor<State> state_;
};

}  // namespace bps

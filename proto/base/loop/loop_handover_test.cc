// A loop that another thread runs for a while. Real threads.
#include "proto/base/loop/loop_handover.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/base/loop/asio_loop.h"
#include "proto/base/loop/completion.h"
#include "proto/base/loop/loop_thread.h"

namespace bps {
namespace {

using namespace std::chrono_literals;

TimePoint in_time() { return std::chrono::steady_clock::now() + 20s; }

std::unique_ptr<LoopThread> start(bool is_lent = true) {
  auto thread = LoopThread::start("test-loop");
  REQUIRE(thread.ok());
  (*thread)->loop().lend(is_lent);
  return std::move(thread).value();
}

// Which thread runs what is posted now.
std::thread::id runner_of(AsioLoop& loop) {
  const auto id = std::make_shared<Completion<std::thread::id>>();
  loop.post([id] { id->set(std::this_thread::get_id()); });
  REQUIRE(id->wait_until(in_time()));
  return id->value();
}

bool always() { return true; }
bool never() { return false; }

// The loop is vacant when it returns, for a moment.
void make_vacant(AsioLoop& loop) {
  bool has_taken = false;
  loop.run_until(
      in_time(), [&] { return has_taken = true; }, always);
  REQUIRE(has_taken);
}

// In the moment in which it is vacant, which a slow machine may miss.
bool runs_here(AsioLoop& loop, const Task& task) {
  const TimePoint deadline = in_time();
  while (std::chrono::steady_clock::now() < deadline) {
    make_vacant(loop);
    if (loop.run_here(task)) return true;
  }
  return false;
}

TEST_CASE("loop handover: a loop that is not lent is run by its own thread") {
  const auto thread = start(false);
  AsioLoop& loop = thread->loop();
  int asked = 0;
  loop.run_until(
      in_time(), [&] { return ++asked > 0; }, always);
  CHECK(asked == 0);
  CHECK_FALSE(loop.run_here([] {}));
  CHECK(runner_of(loop) != std::this_thread::get_id());
}

TEST_CASE("loop handover: the thread that waits runs tasks and timers, in their order, and is the loop's") {
  const auto thread = start();
  AsioLoop& loop = thread->loop();
  const auto here = std::this_thread::get_id();
  std::vector<int> order;
  std::thread other;
  const auto begin = [&] {
    CHECK(loop.in_loop());
    CHECK(std::this_thread::get_id() == here);
    order.push_back(1);
    loop.post([&] { order.push_back(2); });
    loop.after(2ms, [&] {
      CHECK(std::this_thread::get_id() == here);
      order.push_back(3);
      other = std::thread([&] { loop.post([&] { order.push_back(4); }); });  // ends the sleep of this one
    });
  };
  bool has_begun = false;
  loop.run_until(
      in_time(),
      [&] {
        if (!std::exchange(has_begun, true)) loop.post(begin);
        return order.size() == 4;
      },
      always);
  other.join();
  CHECK(order == std::vector<int>{1, 2, 3, 4});
}

TEST_CASE("loop handover: a vacant loop is run by who comes, with all that follows of it") {
  const auto thread = start();
  AsioLoop& loop = thread->loop();
  std::vector<int> order;
  struct Hook final : TurnHook {
    explicit Hook(std::vector<int>& its_order) : order(its_order) {}
    void on_turn_end() override { order.push_back(3); }
    std::vector<int>& order;
  } hook(order);
  const bool has_run = runs_here(loop, [&] {
    order.push_back(1);
    loop.post([&] { order.push_back(2); });
    loop.at_turn_end(hook);
  });
  CHECK(has_run);
  CHECK(order == std::vector<int>{1, 2, 3});
}

TEST_CASE(
    "loop handover: its own thread runs it again when somebody leaves something to do, or after a moment") {
  const auto thread = start();
  AsioLoop& loop = thread->loop();
  const auto here = std::this_thread::get_id();
  make_vacant(loop);
  CHECK(runner_of(loop) != here);
  make_vacant(loop);
  const auto ran = std::make_shared<Completion<std::thread::id>>();
  const bool is_here =
      runs_here(loop, [&] { loop.after(50ms, [ran] { ran->set(std::this_thread::get_id()); }); });
  REQUIRE(is_here);
  REQUIRE(ran->wait_until(in_time()));  // nobody has left anything
  CHECK(ran->value() != here);
}

TEST_CASE("loop handover: a loop with something left to do does not become vacant") {
  const auto thread = start();
  AsioLoop& loop = thread->loop();
  for (int i = 0; i < 100; ++i) {
    bool has_taken = false;
    loop.run_until(
        in_time(), [&] { return has_taken = true; }, never);
    REQUIRE(has_taken);
    REQUIRE_FALSE(loop.run_here([] {}));
  }
  CHECK(runner_of(loop) != std::this_thread::get_id());
}

TEST_CASE("loop handover: nobody runs it beyond a deadline, and one that has come is in time for nothing") {
  const auto thread = start();
  AsioLoop& loop = thread->loop();
  const TimePoint begin = std::chrono::steady_clock::now();
  loop.run_until(begin + 20ms, never, always);
  CHECK(std::chrono::steady_clock::now() >= begin + 20ms);
  loop.run_until(begin, never, always);
  CHECK(std::chrono::steady_clock::now() < begin + 20s);
  CHECK(runner_of(loop) != std::this_thread::get_id());
}

TEST_CASE("loop handover: a long wait, after which its own thread goes on") {
  const auto thread = start();
  AsioLoop& loop = thread->loop();
  std::thread::id runner;
  bool has_begun = false;
  const auto begin = [&] {
    loop.after(20 * LoopHandover::kVacant, [&] { runner = std::this_thread::get_id(); });
  };
  loop.run_until(
      in_time(),
      [&] {
        if (!std::exchange(has_begun, true)) loop.post(begin);
        return runner != std::thread::id{};
      },
      always);
  CHECK(runner == std::this_thread::get_id());
  CHECK(runner_of(loop) != std::this_thread::get_id());
}

TEST_CASE("loop handover: one that is no longer lent sends its guest away") {
  const auto thread = start();
  AsioLoop& loop = thread->loop();
  Completion<bool> is_in;
  std::thread guest([&] {
    loop.run_until(
        in_time(), [&] { return is_in.set(true), false; }, always);
  });
  REQUIRE(is_in.wait_until(in_time()));
  const auto guest_id = guest.get_id();
  loop.lend(false);
  guest.join();
  CHECK(runner_of(loop) != guest_id);
  CHECK_FALSE(loop.run_here([] {}));
}

TEST_CASE("loop handover: a loop that shares its lock with others is not lent") {
  const auto lock = std::make_shared<LoopLock>();
  auto started = LoopThread::start("test-loop", lock);
  REQUIRE(started.ok());
  AsioLoop& loop = (*started)->loop();
  loop.lend(true);
  bool has_begun = false;
  loop.run_until(
      in_time(),
      [&] {
        if (!std::exchange(has_begun, true)) loop.post([&] { lock->share(); });
        return false;
      },
      always);
  CHECK(has_begun);
  CHECK(lock->is_shared());
  CHECK_FALSE(loop.run_here([] {}));
  CHECK(runner_of(loop) != std::this_thread::get_id());
}

TEST_CASE("loop handover: of threads that want it one runs it, and all can do without") {
  const auto thread = start();
  AsioLoop& loop = thread->loop();
  constexpr int kThreads = 4, kTimes = 300;
  int count = 0;  // of whoever is the loop's thread
  std::vector<std::thread> others;
  for (int i = 0; i < kThreads; ++i) {
    others.emplace_back([&] {
      for (int k = 0; k < kTimes; ++k) {
        const auto done = std::make_shared<Completion<int>>();
        const auto add = [&, done] { done->set(++count); };
        if (!loop.run_here(add)) loop.post(add);
        loop.run_until(
            in_time(), [&] { return done->ready(); }, always);
        if (!done->wait_until(in_time())) return;
      }
    });
  }
  for (std::thread& other : others)
    other.join();
  const auto all = std::make_shared<Completion<int>>();
  loop.post([&, all] { all->set(count); });
  REQUIRE(all->wait_until(in_time()));
  CHECK(all->value() == kThreads * kTimes);
}

TEST_CASE("loop handover: one that stops ends the run of every thread") {
  for (int i = 0; i < 50; ++i) {
    const auto thread = start();
    AsioLoop& loop = thread->loop();
    std::atomic<int> started{0};
    std::vector<std::thread> others;
    for (int k = 0; k < 2; ++k) {
      others.emplace_back([&, k] {
        ++started;
        while (!loop.run_here([] {}) && started > 0)
          loop.run_until(
              in_time(), [&] { return started == 0; }, [k] { return k == 0; });
      });
    }
    while (started < 2)
      std::this_thread::yield();
    bool has_run = false;
    loop.post([&] { has_run = true; });
    thread->stop();
    CHECK(has_run);
    started = 0;
    for (std::thread& other : others)
      other.join();
    CHECK_FALSE(loop.run_here([] {}));
    loop.run_until(in_time(), never, always);
  }
}

}  // namespace
}  // namespace bps

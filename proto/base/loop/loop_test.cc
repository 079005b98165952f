// AsioLoop, LoopThread, VirtualLoop and what other threads share with them.
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/base/loop/asio_loop.h"
#include "proto/base/loop/completion.h"
#include "proto/base/loop/loop_thread.h"
#include "proto/base/loop/virtual_loop.h"

namespace bps {
namespace {

using namespace std::chrono_literals;

TimePoint soon() { return std::chrono::steady_clock::now() + 20s; }

// Runs the loop on this thread until `done` or the deadline.
template <class Done>
bool run_until(AsioLoop& loop, Done done) {
  const TimePoint deadline = soon();
  while (!done()) {
    if (loop.now() > deadline) return false;
    loop.run_once(deadline);
  }
  return true;
}

TEST_CASE("tasks run in posting order, after the current one") {
  AsioLoop loop;
  std::vector<int> order;
  loop.post([&] {
    order.push_back(1);
    loop.post([&] { order.push_back(3); });
    order.push_back(2);
  });
  CHECK(order.empty());
  REQUIRE(run_until(loop, [&] { return order.size() == 3; }));
  CHECK(order == std::vector<int>{1, 2, 3});
}

TEST_CASE("timers run by time, cancelled ones never") {
  AsioLoop loop;
  std::vector<int> order;
  const TimePoint start = loop.now();
  loop.after(3ms, [&] { order.push_back(3); });
  loop.after(1ms, [&] { order.push_back(1); });
  const TimerId cancelled = loop.after(2ms, [&] { order.push_back(2); });
  loop.cancel(cancelled);
  loop.cancel(cancelled);
  loop.cancel(TimerId{});
  REQUIRE(run_until(loop, [&] { return order.size() == 2; }));
  CHECK(order == std::vector<int>{1, 3});
  CHECK(loop.now() - start >= 3ms);
}

TEST_CASE("a timer that sets itself again does not keep tasks away") {
  AsioLoop loop;
  bool done = false;
  std::function<void()> again = [&] {
    if (!done) loop.after(0ns, again);
  };
  loop.after(0ns, again);
  loop.post([&] { loop.post([&] { done = true; }); });
  CHECK(run_until(loop, [&] { return done; }));
}

TEST_CASE("an earlier timer set during a long wait is in time") {
  auto thread = LoopThread::start("test");
  REQUIRE(thread.ok());
  AsioLoop& loop = (*thread)->loop();
  auto fired = std::make_shared<Completion<int>>();
  loop.post([&] {
    loop.after(1h, [] {});
    loop.after(1ms, [&] { loop.after(1ms, [=] { fired->set(1); }); });
  });
  CHECK(fired->wait_until(soon()));
}

TEST_CASE("other threads' tasks wake a sleeping loop, all run, each thread's in order") {
  auto thread = LoopThread::start("test");
  REQUIRE(thread.ok());
  AsioLoop& loop = (*thread)->loop();
  constexpr int kThreads = 4;
  constexpr int kTasks = 5000;
  std::vector<std::vector<int>> seen(kThreads);
  auto finished = std::make_shared<Monitor<int>>();
  std::vector<std::unique_ptr<LoopThread>> posters;
  for (int t = 0; t < kThreads; ++t) {
    posters.push_back(std::move(LoopThread::start("poster")).value());
    posters.back()->loop().post([&, t] {
      for (int i = 0; i < kTasks; ++i) {
        loop.post([&, t, i] {
          seen[static_cast<std::size_t>(t)].push_back(i);
          if (i == kTasks - 1) finished->update([](int& count) { ++count; });
        });
      }
    });
  }
  REQUIRE(finished->wait_until(soon(), [](int count) { return count == kThreads; }));
  CHECK_FALSE(loop.in_loop());
  (*thread)->stop();
  for (const auto& list : seen) {
    REQUIRE(list.size() == kTasks);
    CHECK(std::is_sorted(list.begin(), list.end()));
  }
}

TEST_CASE("stop runs what was posted before, and destroys what comes after") {
  auto thread = LoopThread::start("test");
  REQUIRE(thread.ok());
  AsioLoop& loop = (*thread)->loop();
  const auto mailbox = loop.mailbox();
  int ran = 0;
  for (int i = 0; i < 100; ++i)
    loop.post([&] { ++ran; });
  (*thread)->stop();
  (*thread)->stop();
  CHECK(ran == 100);
  auto token = std::make_shared<int>(1);
  loop.post([token, &ran] { ++ran; });
  CHECK(token.use_count() == 1);
  thread.value().reset();
  mailbox->post([token, &ran] { ++ran; });
  CHECK(token.use_count() == 1);
  CHECK(ran == 100);
}

TEST_CASE("what is posted while a loop stops has run or is destroyed when it has stopped") {
  for (int i = 0; i < 100; ++i) {
    auto thread = LoopThread::start("test");
    REQUIRE(thread.ok());
    AsioLoop& loop = (*thread)->loop();
    auto token = std::make_shared<int>(1);
    std::atomic<bool> posting{false};
    std::atomic<bool> enough{false};
    std::thread poster([&] {
      while (!enough.load()) {
        loop.post([token] {});
        posting.store(true);
      }
    });
    while (!posting.load())
      std::this_thread::yield();
    (*thread)->stop();
    enough.store(true);
    poster.join();
    CHECK(token.use_count() == 1);
  }
}

TEST_CASE("a loop that is destroyed destroys what it still has, once") {
  auto token = std::make_shared<int>(1);
  {
    AsioLoop loop;
    loop.post([token] {});
    loop.after(1h, [token] {});
    CHECK(token.use_count() == 3);
  }
  CHECK(token.use_count() == 1);
}

TEST_CASE("the loop's thread knows itself and blocks signals") {
  auto thread = LoopThread::start("a-rather-long-name");
  REQUIRE(thread.ok());
  struct Facts {
    bool in_loop;
    bool term_blocked;
    std::string name;
  };
  auto facts = std::make_shared<Completion<Facts>>();
  AsioLoop& loop = (*thread)->loop();
  loop.post([&] {
    sigset_t mask;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    char name[32] = {};
    ::pthread_getname_np(::pthread_self(), name, sizeof name);
    facts->set({loop.in_loop(), sigismember(&mask, SIGTERM) == 1, name});
  });
  REQUIRE(facts->wait_until(soon()));
  CHECK(facts->value().in_loop);
  CHECK(facts->value().term_blocked);
  CHECK(facts->value().name == "a-rather-long-n");
}

struct CountingHook final : TurnHook {
  int runs = 0;
  std::function<void()> action;
  void on_turn_end() override {
    ++runs;
    if (action) action();
  }
};

TEST_CASE("a hook runs once per turn however often it is asked for, and may ask again or die") {
  AsioLoop loop;
  CountingHook hook;
  auto doomed = std::make_unique<CountingHook>();
  auto never = std::make_unique<CountingHook>();
  hook.action = [&] {
    never.reset();
    if (hook.runs < 3) loop.at_turn_end(hook);
  };
  loop.post([&] {
    loop.at_turn_end(hook);
    loop.at_turn_end(hook);
    loop.at_turn_end(*doomed);
    loop.at_turn_end(*never);
    doomed.reset();
  });
  REQUIRE(run_until(loop, [&] { return hook.runs == 3; }));
  loop.run_once(loop.now());
  CHECK(hook.runs == 3);
  loop.at_turn_end(hook);  // still waiting when the loop dies
}

TEST_CASE(
    "many hooks run in their order over several turns, with tasks between, and all before the loop ends") {
  AsioLoop loop;
  std::vector<std::size_t> order;
  std::vector<CountingHook> hooks(200);
  for (std::size_t i = 0; i < hooks.size(); ++i) {
    hooks[i].action = [&order, i] { order.push_back(i); };
    loop.at_turn_end(hooks[i]);
  }
  loop.run_once(loop.now());
  const std::size_t first = order.size();
  CHECK(first > 0);
  CHECK(first < hooks.size());
  loop.at_turn_end(hooks[0]);  // has its turn behind all that wait
  std::size_t at_task = 0;
  loop.post([&] { at_task = order.size(); });
  REQUIRE(run_until(loop, [&] { return order.size() == hooks.size() + 1; }));
  CHECK(at_task == first);
  for (std::size_t i = 0; i < hooks.size(); ++i)
    CHECK(order[i] == i);
  CHECK(order.back() == 0);
  for (CountingHook& hook : hooks)
    loop.at_turn_end(hook);
  loop.stop();
  loop.run();
  CHECK(order.size() == 2 * hooks.size() + 1);
}

TEST_CASE("signals reach the loop, and the mask is as before afterwards") {
  AsioLoop loop;
  std::vector<int> signals;
  {
    auto watcher =
        SignalWatcher::watch(loop, {SIGUSR1, SIGUSR2}, [&](int signal) { signals.push_back(signal); });
    REQUIRE(watcher.ok());
    ::kill(::getpid(), SIGUSR1);
    REQUIRE(run_until(loop, [&] { return signals.size() == 1; }));
    ::kill(::getpid(), SIGUSR2);
    REQUIRE(run_until(loop, [&] { return signals.size() == 2; }));
  }
  CHECK(signals == std::vector<int>{SIGUSR1, SIGUSR2});
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  CHECK(sigismember(&mask, SIGUSR1) == 0);
}

TEST_CASE("a signal watcher may be destroyed in its callback") {
  AsioLoop loop;
  std::unique_ptr<SignalWatcher> watcher;
  int seen = 0;
  watcher = std::move(SignalWatcher::watch(loop, {SIGUSR1}, [&](int) {
              watcher.reset();
              ++seen;
            })).value();
  ::kill(::getpid(), SIGUSR1);
  CHECK(run_until(loop, [&] { return seen == 1; }));
}

TEST_CASE("a completion is set once and waits no longer than told") {
  Completion<std::string> completion;
  CHECK_FALSE(completion.wait_until(std::chrono::steady_clock::now() + 1ms));
  CHECK_FALSE(completion.ready());
  CHECK(completion.set("first"));
  CHECK_FALSE(completion.set("second"));
  CHECK(completion.wait_until(TimePoint{}));
  CHECK(completion.value() == "first");
}

TEST_CASE("a queue wakes its consumer once per sleep and refuses after close") {
  MpscQueue<int> queue;
  using Pushed = MpscQueue<int>::Pushed;
  CHECK(queue.push(1) == Pushed::queued);
  CHECK_FALSE(queue.prepare_sleep());
  std::vector<int> values;
  queue.take(values);
  CHECK(values == std::vector<int>{1});
  values.clear();
  REQUIRE(queue.prepare_sleep());
  CHECK(queue.push(2) == Pushed::wake);
  CHECK(queue.push(3) == Pushed::queued);
  queue.awake();
  queue.take(values);
  CHECK(values == std::vector<int>{2, 3});
  values.clear();
  REQUIRE(queue.prepare_sleep());
  CHECK(queue.close());
  CHECK_FALSE(queue.close());
  CHECK(queue.push(4) == Pushed::closed);
  CHECK_FALSE(queue.prepare_sleep());
}

TEST_CASE("virtual time: tasks first, then timers by time and age") {
  VirtualLoop loop;
  std::vector<int> order;
  const TimePoint start = loop.now();
  loop.after(2s, [&] { order.push_back(4); });
  loop.after(1s, [&] {
    order.push_back(2);
    loop.post([&] { order.push_back(3); });
  });
  loop.after(2s, [&] { order.push_back(5); });
  loop.cancel(loop.after(1s, [&] { order.push_back(9); }));
  loop.post([&] { order.push_back(1); });
  CHECK(loop.run_until_idle());
  CHECK(order == std::vector<int>{1, 2, 3, 4, 5});
  CHECK(loop.now() - start == 2s);
  CHECK(loop.pending_timers() == 0);
}

TEST_CASE("virtual time stops where it is told") {
  VirtualLoop loop;
  int ticks = 0;
  std::function<void()> tick = [&] {
    ++ticks;
    loop.after(1s, tick);
  };
  loop.after(1s, tick);
  loop.run_for(3500ms);
  CHECK(ticks == 3);
  CHECK(loop.now() == TimePoint{} + 3500ms);
  CHECK(loop.run_until([&] { return ticks == 5; }, TimePoint{} + 10s));
  CHECK(loop.now() == TimePoint{} + 5s);
  CHECK_FALSE(loop.run_until([&] { return ticks == 50; }, TimePoint{} + 7s));
  CHECK(ticks == 7);
  CHECK_FALSE(loop.run_until_idle(100));
  loop.run_until(TimePoint{} + 1s);
  CHECK(loop.now() >= TimePoint{} + 7s);
}

}  // namespace
}  // namespace bps

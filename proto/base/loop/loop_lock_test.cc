#include "proto/base/loop/loop_lock.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <functional>
#include <thread>

#include "proto/base/loop/completion.h"
#include "proto/base/loop/loop_thread.h"
#include "proto/base/testing/run_on.h"

namespace bps::loop_lock_test {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<LoopThread> start(const std::shared_ptr<LoopLock>& lock) {
  auto thread = LoopThread::start("bps-lock", lock);
  REQUIRE(thread.ok());
  return std::move(thread).value();
}

using testing::run_on;
using testing::soon;

}  // namespace

TEST_CASE("loop lock: callbacks of loops that share it run one after another") {
  const auto lock = std::make_shared<LoopLock>();
  const auto first = start(lock);
  CHECK_FALSE(lock->is_shared());
  bool before = true, after = false;
  run_on(first->loop(), [&] {
    before = lock->is_mine();
    lock->share();
    after = lock->is_mine();
  });
  CHECK_FALSE(before);
  CHECK(after);
  const auto second = start(lock), third = start(lock);
  // Not atomic: a race is what the thread sanitizer sees, and a lost count what everyone sees.
  struct {
    int inside = 0;
    int most = 0;
    long count = 0;
    bool always_mine = true;
  } state;
  constexpr int kEach = 3000;
  Completion<bool> all;
  for (LoopThread* const thread : {first.get(), second.get(), third.get()}) {
    AsioLoop& loop = thread->loop();
    const auto step = std::make_shared<std::function<void(int)>>();
    *step = [&state, &all, &loop, lock, step](int left) {
      state.most = std::max(state.most, ++state.inside);
      state.always_mine = state.always_mine && lock->is_mine() && loop.in_loop();
      --state.inside;
      if (++state.count == 3L * kEach) all.set(true);
      if (left > 1) {
        const auto next = [step, left] { (*step)(left - 1); };
        left % 2 == 0 ? loop.post(next) : (void)loop.after(Duration{}, next);
      } else {
        loop.post([step] { *step = {}; });
      }
    };
    loop.post([step] { (*step)(kEach); });
  }
  REQUIRE(all.wait_until(soon()));
  run_on(first->loop(), [] {});  // behind the last one, which still has the lock
  run_on(second->loop(), [] {});
  run_on(third->loop(), [] {});
  CHECK(state.most == 1);
  CHECK(state.always_mine);
}

TEST_CASE("loop lock: what one loop gives another to do does not wait for it to wake by itself") {
  const auto lock = std::make_shared<LoopLock>();
  const auto first = start(lock);
  run_on(first->loop(), [&] { lock->share(); });
  const auto second = start(lock);
  struct Hook final : TurnHook {
    std::function<void()> run;
    void on_turn_end() override { run(); }
  };
  for (int i = 0; i < 200; ++i) {
    const auto timer = std::make_shared<Completion<bool>>();
    const auto hooked = std::make_shared<Completion<bool>>();
    Hook hook;
    std::thread::id there;
    run_on(second->loop(), [&] { there = std::this_thread::get_id(); });
    hook.run = [&] { hooked->set(lock->is_mine() && std::this_thread::get_id() == there); };
    run_on(first->loop(), [&] {
      second->loop().after(Duration{}, [timer] { timer->set(true); });
      second->loop().at_turn_end(hook);
    });
    REQUIRE(timer->wait_until(soon()));
    REQUIRE(hooked->wait_until(soon()));
    CHECK(hooked->value());
    run_on(second->loop(), [] {});  // it has let go of the hook
    // One that is cancelled from elsewhere does not run.
    bool has_run = false;
    run_on(first->loop(), [&] {
      const TimerId doomed = second->loop().after(Duration{}, [&] { has_run = true; });
      second->loop().cancel(doomed);
    });
    run_on(second->loop(), [] {});
    CHECK_FALSE(has_run);
  }
}

TEST_CASE("loop lock: a system call runs without it, and its error is kept") {
  const auto lock = std::make_shared<LoopLock>();
  const auto first = start(lock);
  run_on(first->loop(), [&] { lock->share(); });
  const auto second = start(lock);
  Completion<bool> inside, other, over;
  first->loop().post([&] {
    bool right = true;
    errno = 0;
    const int result = first->loop().outside([&] {
      right = !lock->is_mine();
      inside.set(true);
      right = right && other.wait_until(soon());  // which needs the lock
      errno = EAGAIN;
      return -1;
    });
    const int error = errno;
    over.set(right && result == -1 && error == EAGAIN && lock->is_mine());
  });
  REQUIRE(inside.wait_until(soon()));
  bool is_mine = false;
  run_on(second->loop(), [&] { is_mine = lock->is_mine(); });
  CHECK(is_mine);
  other.set(true);
  REQUIRE(over.wait_until(soon()));
  CHECK(over.value());
}

}  // namespace bps::loop_lock_test

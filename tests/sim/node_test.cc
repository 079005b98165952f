#include "tests/sim/node.h"

#include <catch2/catch.hpp>
#include <vector>

#include "proto/base/loop/virtual_loop.h"

namespace bps::sim {
namespace {
using namespace std::chrono_literals;
}

TEST_CASE("posts to one loop keep their order") {
  VirtualLoop base;
  SimNode node(base, "n", "10.0.0.1", 1);
  std::vector<int> seen;
  for (int i = 0; i < 100; ++i)
    node.loop().post([&seen, i] { seen.push_back(i); });
  base.run_until_idle();
  REQUIRE(seen.size() == 100);
  for (int i = 0; i < 100; ++i)
    CHECK(seen[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("tasks of two loops interleave differently with every seed") {
  const auto order = [](std::uint64_t seed) {
    VirtualLoop base;
    SimNode node(base, "n", "10.0.0.1", seed);
    node.add_loop();
    std::vector<std::size_t> seen;
    for (int i = 0; i < 50; ++i) {
      for (std::size_t l = 0; l < 2; ++l)
        node.loop(l).post([&seen, l] { seen.push_back(l); });
    }
    base.run_until_idle();
    return seen;
  };
  CHECK(order(1) == order(1));
  CHECK(order(1) != order(2));
}

TEST_CASE("in_loop is true for the loop that runs and for nobody else") {
  VirtualLoop base;
  SimNode node(base, "n", "10.0.0.1", 1);
  NodeLoop& other = node.add_loop();
  CHECK(node.loop().in_loop());
  bool checked = false;
  node.loop().post([&] {
    CHECK(node.loop().in_loop());
    CHECK_FALSE(other.in_loop());
    CHECK(NodeLoop::current() == &node.loop());
    checked = true;
  });
  base.run_until_idle();
  CHECK(checked);
}

TEST_CASE("a timer runs once, not before its time on a clock that is wrong, and not when cancelled") {
  for (const std::int64_t drift : {-50'000, -3, 0, 7, 50'000}) {
    VirtualLoop base;
    SimNode node(base, "n", "10.0.0.1", 1);
    node.set_clock(17h, drift);
    int ran = 0;
    const TimePoint when = node.loop().now() + 1234567891ns;
    node.loop().at(when, [&] {
      ++ran;
      CHECK(node.loop().now() >= when);
      CHECK(node.loop().now() < when + 2ms);
    });
    const TimerId cancelled = node.loop().after(1s, [&] { ran += 100; });
    node.loop().cancel(cancelled);
    node.loop().cancel(cancelled);
    node.loop().at(TimePoint::max(), [&] { ran += 1000; });
    base.run_until(base.now() + 10s);
    CHECK(ran == 1);
  }
}

TEST_CASE("a timer may be cancelled when it is due but has not run") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    VirtualLoop base;
    SimNode node(base, "n", "10.0.0.1", seed);
    int ran = 0;
    TimerId second;
    node.loop().after(1ms, [&] { node.loop().cancel(second); });
    second = node.loop().after(1ms, [&] { ++ran; });
    base.run_until_idle();
    CHECK(ran == 0);
  }
}

TEST_CASE("nothing runs while paused, everything after") {
  VirtualLoop base;
  SimNode node(base, "n", "10.0.0.1", 1);
  int ran = 0;
  node.loop().after(1ms, [&] { ++ran; });
  node.loop().post([&] { ++ran; });
  node.pause();
  base.run_for(1s);
  CHECK(ran == 0);
  node.resume();
  base.run_for(1s);
  CHECK(ran == 2);
}

TEST_CASE("a killed node drops its tasks, also those that its dropped tasks post") {
  VirtualLoop base;
  SimNode node(base, "n", "10.0.0.1", 1);
  int ran = 0;
  const auto count = [&ran] { ++ran; };
  node.loop().post(
      [posts_when_dropped = std::shared_ptr<void>(nullptr, [&](void*) { node.loop().post(count); })] {});
  node.loop().after(1ms, count);
  node.kill();
  node.loop().post(count);
  base.run_for(1s);
  CHECK(ran == 0);
}

}  // namespace bps::sim

// A host's local group on the simulator's network: links of any speed and buffer, which lend or do not, and
// break.
#include "client/src/group/host_group.h"

#include <catch2/catch.hpp>

#include "client/src/group/testing/host_world.h"
#include "proto/base/loop/virtual_loop.h"
#include "tests/sim/virtual_transport.h"

namespace bps::sim {
namespace {

using namespace std::chrono_literals;

struct World {
  World(std::uint32_t size, const NetworkOptions& options)
      : network(loop, options), world(loop, network, size, options.seed, [this] {
          return Endpoint{"10.0.0." + std::to_string(++hosts_), 7};
        }) {
    REQUIRE(loop.run_until([&] { return world.is_connected(); }, loop.now() + 10s));
  }
  void add_tensors(std::uint64_t seed, int count, std::uint32_t max_elements) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < count; ++i)
      world.exercise.add(testing::random_tensor(random, world.exercise.size(), max_elements));
  }
  void finish() {
    world.exercise.go();
    loop.run_until([&] { return world.exercise.is_done(); }, loop.now() + 100s);
    INFO(world.exercise.state() << world.closed());
    REQUIRE(world.exercise.is_done());
  }

  VirtualLoop loop;
  VirtualTransport network;
  int hosts_ = 0;
  testing::HostWorld world;
};

TEST_CASE("host group: any links, any size, any tensors") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    NetworkOptions options;
    options.seed = seed;
    options.lending_percent = seed % 3 * 50;
    options.max_slab = seed % 2 == 0 ? 1 : 128 * 1024;
    options.max_give_back = seed % 5 * 1ms;
    World host(static_cast<std::uint32_t>(1 + seed % 8), options);
    CAPTURE(seed, host.world.exercise.size());
    host.add_tensors(seed, 6, 600);
    host.finish();
    host.world.exercise.again();
    host.finish();
    host.world.exercise.check();
    CHECK(host.network.violations() == std::vector<std::string>());
  }
}

// A member stops at any moment. What the others have summed by then is right, what they sum later is, too,
// and all of them end what they have begun as soon as they are told.
TEST_CASE("host group: a member breaks off at any step") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    NetworkOptions options;
    options.seed = seed;
    options.lending_percent = seed % 3 * 50;
    options.max_give_back = seed % 5 * 1ms;
    World host(static_cast<std::uint32_t>(2 + seed % 4), options);
    auto& exercise = host.world.exercise;
    const std::uint32_t size = exercise.size();
    CAPTURE(seed, size);
    host.add_tensors(seed, 4, 300);
    exercise.go();
    for (std::uint64_t step = seed * 7919 % 3000; step > 0; --step)
      host.loop.step();
    const auto victim = static_cast<std::uint32_t>(seed % size);
    const Error lost = make_error(ErrorCode::peer_lost, "rank 12 is gone");
    host.world.abort(victim, lost);
    host.loop.run_tasks();
    REQUIRE(exercise.is_quiet(victim));
    exercise.scribble(victim);
    host.loop.run_until(host.loop.now() + 50ms * (seed % 2));
    for (std::uint32_t i = 0; i < size; ++i) {
      if (i != victim) host.world.abort(i, lost);
    }
    host.loop.run_until(host.loop.now() + 1s);
    for (std::uint32_t i = 0; i < size; ++i) {
      CHECK(exercise.is_quiet(i));
      CHECK_FALSE(exercise.member(i).broken);
      for (const auto& [number, status] : exercise.member(i).ended)
        CHECK((status.ok() || status.error() == lost));
    }
    CHECK(host.network.violations() == std::vector<std::string>());
  }
}

}  // namespace
}  // namespace bps::sim

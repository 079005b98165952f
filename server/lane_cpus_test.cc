#include "server/lane_cpus.h"

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "proto/base/usable_cores.h"

namespace bps {

TEST_CASE("lane cpus: a shard runs where all its lanes come from, and where it likes if they differ") {
  std::vector<std::optional<std::uint32_t>> bound;
  LaneCpus cpus([&](std::optional<std::uint32_t> cpu) { bound.push_back(cpu); });
  const auto last = [&] { return bound.empty() ? std::nullopt : bound.back(); };
  cpus.enter(std::nullopt);
  CHECK(bound.empty());
  cpus.enter(1);
  CHECK(bound.empty());  // one does not say
  cpus.leave(std::nullopt);
  CHECK(last() == 1u);
  cpus.enter(1);
  CHECK(bound.size() == 1);
  cpus.enter(0);
  CHECK(last() == std::nullopt);
  CHECK(bound.size() == 2);
  cpus.leave(1);
  CHECK(bound.size() == 2);
  cpus.leave(1);
  CHECK(last() == 0u);
  // It stays while there are none.
  cpus.leave(0);
  CHECK(bound.size() == 3);
  cpus.enter(0);
  CHECK(bound.size() == 3);
  cpus.leave(0);
  cpus.enter(std::nullopt);
  CHECK(last() == std::nullopt);
  CHECK(bound.size() == 4);
}

TEST_CASE("lane cpus: without anything to bind with, nothing is bound") {
  LaneCpus cpus({});
  CHECK_NOTHROW(cpus.enter(3));
  CHECK_NOTHROW(cpus.leave(3));
}

TEST_CASE("lane cpus: a worker's word never takes a shard to where the server may not run") {
  const auto all = usable_cpus();
  REQUIRE_FALSE(all.empty());
  const std::uint32_t first = all.front(), last = all.back();
  std::thread([&] {
    const auto bind = bind_among(all);
    bind(last);
    CHECK(usable_cpus() == std::vector{last});
    bind(std::nullopt);
    CHECK(usable_cpus() == all);
    bind(1023);  // it is not there
    CHECK(usable_cpus() == all);
    // Who was started on the first only, and could run on the last.
    const auto bind_narrow = bind_among({first});
    bind_narrow(first);
    bind_narrow(last);
    CHECK(usable_cpus() == std::vector{first});
    bind_narrow(std::nullopt);
    CHECK(usable_cpus() == std::vector{first});
  }).join();
  CHECK_FALSE(bind_among({}));
}

}  // namespace bps

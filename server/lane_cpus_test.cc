#include "server/lane_cpus.h"

#include <catch2/catch.hpp>
#include <vector>

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
  cpus.enter(3);
  cpus.leave(3);
}

}  // namespace bps

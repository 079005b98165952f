#include "bench/cpu_time.h"

#include <catch2/catch.hpp>

namespace bps::bench {

TEST_CASE("busy time leaves out idle, iowait and steal") {
  const auto busy = parse_busy_cpu_seconds("cpu  100 20 300 99999 888 4 50 777 0 0\ncpu0 1 2 3\n", 100);
  REQUIRE(busy.ok());
  CHECK(*busy == Approx(4.74));
  CHECK_FALSE(parse_busy_cpu_seconds("intr 5", 100).ok());
  CHECK_FALSE(parse_busy_cpu_seconds("", 100).ok());
}

TEST_CASE("busy time of this machine grows") {
  const auto before = busy_cpu_seconds();
  REQUIRE(before.ok());
  CHECK(*before > 0);
}

}  // namespace bps::bench

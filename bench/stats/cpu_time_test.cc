#include "bench/stats/cpu_time.h"

#include <unistd.h>

#include <catch2/catch.hpp>

namespace bps::bench {

TEST_CASE("busy time leaves out idle, iowait and steal; idle time has two of them") {
  const auto time = parse_machine_time("cpu  100 20 300 99999 888 4 50 777 0 0\ncpu0 1 2 3\n", 100);
  REQUIRE(time.ok());
  CHECK(time->busy == Approx(4.74));
  CHECK(time->idle == Approx(1008.87));
  CHECK_FALSE(parse_machine_time("intr 5", 100).ok());
  CHECK_FALSE(parse_machine_time("", 100).ok());
}

TEST_CASE("the time of a process, whatever its name") {
  const auto time =
      parse_process_cpu_seconds("77 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0 5 6 7\n", 100);
  REQUIRE(time.ok());
  CHECK(*time == Approx(3));
  CHECK_FALSE(parse_process_cpu_seconds("", 100).ok());
  CHECK_FALSE(parse_process_cpu_seconds("77 (a) S 1 2", 100).ok());
  CHECK(process_cpu_seconds(::getpid()).ok());
  CHECK_FALSE(process_cpu_seconds(0).ok());
}

TEST_CASE("this machine has times") {
  const auto before = machine_time();
  REQUIRE(before.ok());
  CHECK(before->busy > 0);
  CHECK(before->idle > 0);
}

}  // namespace bps::bench

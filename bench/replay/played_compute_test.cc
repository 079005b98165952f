#include "bench/replay/played_compute.h"

#include <catch2/catch.hpp>

namespace bps::bench {

TEST_CASE("played compute: is not over before its time, and adds up exactly") {
  PlayedCompute compute;
  compute.begin();
  for (int i = 0; i < 100; ++i) {
    compute.compute(20e-6);
    REQUIRE(compute.wait());
    CHECK(now_ns() >= compute.at_ns());
  }
  CHECK(compute.at_ns() - compute.begin_ns() == Approx(2'000'000).margin(1'000));
}

TEST_CASE("played compute: a stall moves the timeline, one that is behind does not") {
  PlayedCompute compute;
  compute.begin();
  compute.stalled_until_now();
  const std::int64_t stalled = compute.at_ns();
  CHECK(stalled >= compute.begin_ns());
  compute.compute(3600);
  compute.stalled_until_now();
  CHECK(compute.at_ns() - stalled == Approx(3.6e12));
}

}  // namespace bps::bench

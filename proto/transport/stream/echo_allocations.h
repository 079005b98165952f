// For tests of transports: what a frame allocates that goes to and fro. Counts, so a test program includes it
// in one source file only (see allocation_counter.h), and uses it where BPS_COUNTS_ALLOCATIONS is 1.
#pragma once

#include "proto/base/testing/allocation_counter.h"
#if BPS_COUNTS_ALLOCATIONS

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <limits>

#include "proto/base/loop/asio_loop.h"

namespace bps::testing {

// Of the quietest thousand echoes that a client with `messages` gets. A queue that becomes deeper than ever
// before grows once, when the system happens to run the peers unevenly; what a frame costs shows in every
// thousand.
inline std::uint64_t allocations_of_echoes(AsioLoop& loop, const int& messages) {
  const TimePoint deadline = loop.now() + std::chrono::seconds(30);
  const auto run_to = [&](int wanted) {
    while (messages < wanted && loop.now() < deadline)
      loop.run_once(deadline);
    return messages >= wanted;
  };
  REQUIRE(run_to(500));
  std::uint64_t fewest = std::numeric_limits<std::uint64_t>::max();
  for (int batch = 0; batch < 5 && fewest > 0; ++batch) {
    const std::uint64_t before = allocations;
    const bool arrived = run_to(messages + 1000);
    fewest = std::min(fewest, allocations - before);
    REQUIRE(arrived);
  }
  return fewest;
}

}  // namespace bps::testing

#endif  // BPS_COUNTS_ALLOCATIONS

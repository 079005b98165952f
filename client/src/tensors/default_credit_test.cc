#include "client/src/tensors/default_credit.h"

#include <catch2/catch.hpp>

using namespace bps;

TEST_CASE("default credit: 8 ms of the link, 2 MiB without one, and two partitions a lane",
          "[default_credit]") {
  constexpr std::uint64_t kMiB = 1024 * 1024;
  CHECK(default_credit_bytes(0, false, 4, kMiB / 4) == 4 * kMiB);
  CHECK(default_credit_bytes(200'000'000, false, 8, kMiB / 32) == kMiB / 2);
  CHECK(default_credit_bytes(2'000'000'000, false, 1, kMiB / 16) == 2'000'000);
  CHECK(default_credit_bytes(100'000'000'000, false, 4, kMiB / 4) == 4 * kMiB);
  CHECK(default_credit_bytes(0, false, 32, kMiB / 4) == 16 * kMiB);
  CHECK(default_credit_bytes(200'000'000, false, 8, kMiB / 4) == 4 * kMiB);
  CHECK(default_credit_bytes(0, true, 4, kMiB / 4) == 2 * kMiB);
  CHECK(default_credit_bytes(0, true, 8, kMiB / 4) == 4 * kMiB);
  CHECK(default_credit_bytes(2'000'000'000, true, 1, kMiB / 16) == 2'000'000);
}

#include "scheduler/placement/partition_size.h"

#include <catch2/catch.hpp>

#include "proto/wire/limits.h"

using namespace bps;

TEST_CASE("partitions: what half a millisecond of the slowest link carries", "[partition_size]") {
  CHECK(default_partition_bytes(0) == kDefaultPartitionBytes);
  CHECK(default_partition_bytes(1) == 32 * 1024);
  CHECK(default_partition_bytes(200'000'000) == 32 * 1024);
  CHECK(default_partition_bytes(1'000'000'000) == 32 * 1024);
  CHECK(default_partition_bytes(2'500'000'000) == 128 * 1024);
  CHECK(default_partition_bytes(10'000'000'000) == kDefaultPartitionBytes);
  CHECK(default_partition_bytes(UINT64_MAX) == kDefaultPartitionBytes);
}

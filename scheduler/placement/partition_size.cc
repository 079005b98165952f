#include "scheduler/placement/partition_size.h"

#include <algorithm>
#include <bit>

#include "proto/wire/limits.h"

namespace bps {
namespace {
constexpr std::uint64_t kSmallest = 32 * 1024;
}  // namespace

std::uint64_t default_partition_bytes(std::uint64_t slowest_bps) {
  if (slowest_bps == 0) return kDefaultPartitionBytes;
  const std::uint64_t half_millisecond = slowest_bps / 8 / 2000;
  return std::clamp(std::bit_floor(half_millisecond), kSmallest, kDefaultPartitionBytes);
}

}  // namespace bps

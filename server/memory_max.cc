#include "server/memory_max.h"

#include <fmt/core.h>

#include <algorithm>

#include "proto/base/config/units.h"

namespace bps {
namespace {

constexpr std::uint64_t kWithoutLimit = 4ull << 30;
constexpr std::uint64_t kForOthers = 64 << 20;
constexpr std::uint64_t kShareForOthers = 16;

}  // namespace

std::uint64_t default_memory_max(const MemoryBound& limit) {
  if (limit.bytes == UINT64_MAX) return kWithoutLimit;
  const std::uint64_t others = std::max(limit.bytes / kShareForOthers, kForOthers);
  return limit.bytes - std::min(others, limit.bytes / 2);
}

std::optional<std::string> doubt_about(std::uint64_t memory_max, const MemoryBound& limit) {
  if (limit.bytes == UINT64_MAX || memory_max <= default_memory_max(limit)) return std::nullopt;
  return fmt::format(
      "--memory-max {} is more than this server can have: {} allows {}, so give it at most {}; "
      "tensors beyond what there is are refused",
      rounded(ByteSize{memory_max}), limit.by, rounded(ByteSize{limit.bytes}),
      rounded(ByteSize{default_memory_max(limit)}));
}

}  // namespace bps

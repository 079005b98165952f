#include "client/src/tensors/default_credit.h"

#include <algorithm>

namespace bps {
namespace {
constexpr std::uint64_t kLeast = 512 * 1024;
constexpr std::uint64_t kWithoutLink = 2 * 1024 * 1024;
constexpr std::uint64_t kMost = 4 * 1024 * 1024;
}  // namespace

std::uint64_t default_credit_bytes(std::uint64_t bandwidth_bps, bool only_own_sockets, std::size_t lanes,
                                   std::uint64_t partition_bytes) {
  const std::uint64_t unknown = only_own_sockets ? kWithoutLink : kMost;
  const std::uint64_t of_link = bandwidth_bps == 0 ? unknown : bandwidth_bps / 8 / 125;
  return std::max(std::clamp(of_link, kLeast, kMost), 2 * lanes * partition_bytes);
}

}  // namespace bps

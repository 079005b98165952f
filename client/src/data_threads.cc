#include "client/src/data_threads.h"

#include <algorithm>

namespace bps {
namespace {
constexpr std::uint64_t kBitsPerSecond = 25'000'000'000;  // of one thread
}  // namespace

DataThreads data_threads(const DataThreadsFacts& facts) {
  if (!facts.only_network) return {};
  std::size_t count = 1;
  if (facts.wanted) {
    count = *facts.wanted;
  } else if (facts.only_own_sockets) {
    count = facts.cpus;
  } else {
    const std::uint64_t share = facts.bandwidth_bps / std::max<std::size_t>(facts.workers_here, 1);
    count = std::min<std::size_t>(facts.cpus, (share + kBitsPerSecond - 1) / kBitsPerSecond);
  }
  count = std::clamp<std::size_t>(count, 1, std::max<std::size_t>(facts.lanes, 1));
  return {count, facts.only_own_sockets && count > 1 && count == facts.cpus};
}

}  // namespace bps

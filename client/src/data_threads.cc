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
    count = std::min<std::size_t>(facts.cpus, (facts.bandwidth_bps + kBitsPerSecond - 1) / kBitsPerSecond);
  }
  count = std::clamp<std::size_t>(count, 1, std::max<std::size_t>(facts.lanes, 1));
  const bool shares_cpus = facts.workers_here + facts.lanes > facts.cpus;
  return {count, facts.only_own_sockets && shares_cpus && count > 1 && count == facts.cpus};
}

}  // namespace bps

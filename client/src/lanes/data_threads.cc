#include "client/src/lanes/data_threads.h"

#include <algorithm>

namespace bps {
namespace {
constexpr std::uint64_t kBitsPerSecond = 25'000'000'000;  // of one thread

// Whether no CPU has more than an eighth beyond its share of them: the rest would wait for it, and nothing
// bound can help.
bool spread_evenly(std::size_t lanes, std::size_t cpus) {
  const std::size_t most = (lanes + cpus - 1) / cpus;
  return 8 * most * cpus <= 9 * lanes;
}
}  // namespace

DataThreads data_threads(const DataThreadsFacts& facts) {
  if (!facts.only_network) return {};
  std::size_t count = 1;
  if (facts.wanted) {
    count = *facts.wanted;
  } else if (facts.only_own_sockets) {
    count = facts.lanes < facts.cpus || spread_evenly(facts.lanes, facts.cpus) ? facts.cpus : 1;
  } else {
    const std::uint64_t share = facts.bandwidth_bps / std::max<std::size_t>(facts.workers_here, 1);
    count = std::min<std::size_t>(facts.cpus, (share + kBitsPerSecond - 1) / kBitsPerSecond);
  }
  count = std::clamp<std::size_t>(count, 1, std::max<std::size_t>(facts.lanes, 1));
  const bool fills_cpus = count > 1 && count == facts.cpus && spread_evenly(facts.lanes, facts.cpus);
  return {count, facts.only_own_sockets && fills_cpus};
}

}  // namespace bps

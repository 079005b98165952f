#include "bench/commands/tstar.h"

#include <algorithm>

namespace bps::bench {
namespace {

// What the server of the host may own if its link is to be done within `t`; `t` suffices for its worker.
double largest_share(const LinkHost& host, double workers, double t) {
  if (!host.server) return 0;
  const double own = host.worker ? 1 : 0;
  const double per_share = workers - 2 * own;
  if (per_share <= 0) return 1;  // two workers or one: what it owns makes its link no slower
  return std::clamp((t * host.bytes_per_s - own) / per_share, 0.0, 1.0);
}

}  // namespace

double tstar_s_per_byte(std::span<const LinkHost> hosts) {
  double workers = 0;
  double slowest = hosts.front().bytes_per_s;
  for (const LinkHost& host : hosts) {
    workers += host.worker ? 1 : 0;
    slowest = std::min(slowest, host.bytes_per_s);
  }
  double low = 0;
  for (const LinkHost& host : hosts) {
    if (!host.worker) continue;
    if (host.server && workers == 1) return 0;  // nothing leaves the host
    low = std::max(low, 1 / host.bytes_per_s);
  }
  const auto enough = [&](double t) {
    double share = 0;
    for (const LinkHost& host : hosts)
      share += largest_share(host, workers, t);
    return share >= 1;
  };
  if (enough(low)) return low;
  double high = (workers + 1) / slowest;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (enough(middle) ? high : low) = middle;
  }
  return high;
}

std::vector<LinkHost> link_hosts(std::uint32_t workers, std::uint32_t servers, std::uint32_t colocated,
                                 double bytes_per_s) {
  std::vector<LinkHost> hosts;
  for (std::uint32_t i = 0; i < workers; ++i)
    hosts.push_back({true, i < colocated, bytes_per_s});
  hosts.insert(hosts.end(), servers, {false, true, bytes_per_s});
  return hosts;
}

}  // namespace bps::bench

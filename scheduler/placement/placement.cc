#include "scheduler/placement/placement.h"

#include <algorithm>
#include <limits>
#include <map>

#include "proto/base/assert.h"

namespace bps {
namespace {

// Below this the rest of a share is rounding.
constexpr double kNoise = 1e-12;

struct Interval {
  double low = 0;
  double high = 0;
};

// The shares that host h may carry within `time` (per byte of a worker); low > high if there are none.
Interval interval_of(const HostLoad& host, double workers, double time) {
  const double own = host.workers;
  const double slope = workers - 2 * own;
  const double room = time * host.bandwidth - own;  // of slope * share
  Interval interval{0, host.has_servers ? 1.0 : 0.0};
  if (slope > 0) {
    interval.high = std::min(interval.high, room / slope);
  } else if (slope < 0) {
    interval.low = std::max(interval.low, room / slope);
  } else if (room < 0) {
    interval.high = -1;
  }
  return interval;
}

bool feasible(std::span<const HostLoad> hosts, double workers, double time) {
  double low = 0;
  double high = 0;
  for (const HostLoad& host : hosts) {
    const Interval interval = interval_of(host, workers, time);
    if (interval.low > interval.high) return false;
    low += interval.low;
    high += interval.high;
  }
  return low <= 1 && high >= 1;
}

double smallest_time(std::span<const HostLoad> hosts, double workers) {
  // A link never carries more than everything that every worker pushes.
  double high = 0;
  for (const HostLoad& host : hosts)
    high = std::max(high, (workers + 1) / host.bandwidth);
  double low = 0;
  for (int i = 0; i < 200 && high - low > high * 1e-15; ++i) {
    const double middle = low + (high - low) / 2;
    (feasible(hosts, workers, middle) ? high : low) = middle;
  }
  return high;
}

// Gives `rest` to the hosts for which `wanted` holds, in proportion to the slack of their intervals.
template <class Wanted>
void spread(double& rest, const std::vector<Interval>& intervals, std::vector<double>& share, Wanted wanted) {
  double slack = 0;
  for (std::size_t i = 0; i < share.size(); ++i) {
    if (wanted(i)) slack += intervals[i].high - intervals[i].low;
  }
  if (slack <= 0 || rest <= 0) return;
  const double part = std::min(1.0, rest / slack);
  for (std::size_t i = 0; i < share.size(); ++i) {
    if (wanted(i)) share[i] += part * (intervals[i].high - intervals[i].low);
  }
  rest -= part * slack;
}

// Bandwidths with the unknown ones filled in: as the fastest that is known, 1 if none is.
void fill_unknown(std::vector<double>& bandwidth) {
  const double fastest = *std::max_element(bandwidth.begin(), bandwidth.end());
  for (double& value : bandwidth) {
    if (value <= 0) value = fastest > 0 ? fastest : 1;
  }
}

}  // namespace

HostShares solve_host_shares(std::span<const HostLoad> hosts) {
  double workers = 0;
  bool any_server = false;
  for (const HostLoad& host : hosts) {
    BPS_ASSERT(host.bandwidth > 0);
    workers += host.workers;
    any_server = any_server || host.has_servers;
  }
  BPS_ASSERT(any_server);

  HostShares result;
  result.seconds_per_byte = smallest_time(hosts, workers);
  std::vector<Interval> intervals;
  double rest = 1;
  for (const HostLoad& host : hosts) {
    intervals.push_back(interval_of(host, workers, result.seconds_per_byte));
    result.share.push_back(intervals.back().low);
    rest -= intervals.back().low;
  }
  const auto indifferent = [&](std::size_t i) { return workers == 2.0 * hosts[i].workers; };
  spread(rest, intervals, result.share, [&](std::size_t i) { return !indifferent(i); });
  spread(rest, intervals, result.share, indifferent);

  double sum = 0;
  for (double& share : result.share) {
    if (share < kNoise) share = 0;
    sum += share;
  }
  for (double& share : result.share)
    share /= sum;
  return result;
}

std::vector<double> server_shares(std::span<const PlacementNode> workers,
                                  std::span<const PlacementNode> servers) {
  std::map<std::string, std::size_t> index_of;
  std::vector<HostLoad> hosts;
  std::vector<double> bandwidth;
  const auto host_of = [&](const PlacementNode& node) {
    const auto [it, inserted] = index_of.emplace(node.host, hosts.size());
    if (inserted) {
      hosts.emplace_back();
      bandwidth.push_back(0);
    }
    bandwidth[it->second] = std::max(bandwidth[it->second], static_cast<double>(node.bandwidth_bps) / 8);
    return it->second;
  };
  for (const PlacementNode& worker : workers)
    ++hosts[host_of(worker)].workers;
  std::vector<std::vector<std::size_t>> on_host(hosts.size() + servers.size());
  for (std::size_t i = 0; i < servers.size(); ++i) {
    const std::size_t host = host_of(servers[i]);
    hosts[host].has_servers = true;
    on_host[host].push_back(i);
  }
  fill_unknown(bandwidth);
  for (std::size_t i = 0; i < hosts.size(); ++i)
    hosts[i].bandwidth = bandwidth[i];

  const HostShares solved = solve_host_shares(hosts);
  std::vector<double> shares(servers.size(), 0);
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    if (on_host[host].empty()) continue;
    std::vector<double> weights;
    for (const std::size_t i : on_host[host])
      weights.push_back(static_cast<double>(servers[i].bandwidth_bps));
    fill_unknown(weights);
    double sum = 0;
    for (const double weight : weights)
      sum += weight;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      shares[on_host[host][i]] = solved.share[host] * weights[i] / sum;
    }
  }
  return shares;
}

}  // namespace bps

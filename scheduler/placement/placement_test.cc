#include "scheduler/placement/placement.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <random>

namespace bps {
namespace {

// The time that a link needs for one byte of every worker, by the formula of the header.
double seconds_of(const HostLoad& host, double share, double workers) {
  return (host.workers + share * (workers - 2.0 * host.workers)) / host.bandwidth;
}

double slowest(const std::vector<HostLoad>& hosts, const std::vector<double>& share) {
  double workers = 0;
  for (const HostLoad& host : hosts)
    workers += host.workers;
  double worst = 0;
  for (std::size_t i = 0; i < hosts.size(); ++i)
    worst = std::max(worst, seconds_of(hosts[i], share[i], workers));
  return worst;
}

std::vector<double> random_shares(const std::vector<HostLoad>& hosts, std::mt19937& random) {
  std::vector<double> share(hosts.size(), 0);
  std::exponential_distribution<double> draw(1);
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (hosts[i].has_servers && random() % 4 != 0) share[i] = draw(random);
  }
  double sum = std::accumulate(share.begin(), share.end(), 0.0);
  if (sum == 0) {
    for (std::size_t i = 0; i < hosts.size(); ++i)
      sum += share[i] = hosts[i].has_servers ? 1 : 0;
  }
  for (double& s : share)
    s /= sum;
  return share;
}

}  // namespace

TEST_CASE("placement: the closed form of co-located servers and k CPU servers") {
  const double bandwidth = 125e6;
  for (std::uint32_t n = 2; n <= 8; ++n) {
    for (std::uint32_t k = 0; k <= n; ++k) {
      std::vector<HostLoad> hosts(n, {1, bandwidth, true});
      hosts.insert(hosts.end(), k, {0, bandwidth, true});
      const HostShares solved = solve_host_shares(hosts);
      const double d = n * n + k * n - 2.0 * k;
      INFO("n=" << n << " k=" << k);
      CHECK(solved.seconds_per_byte == Approx(2.0 * n * (n - 1) / (d * bandwidth)).epsilon(1e-9));
      CHECK(slowest(hosts, solved.share) == Approx(solved.seconds_per_byte).epsilon(1e-9));
      for (std::uint32_t i = 0; i < n; ++i)
        CHECK(solved.share[i] == Approx((n - k) / d).margin(1e-9));
      for (std::uint32_t i = n; i < n + k; ++i)
        CHECK(solved.share[i] == Approx(2.0 * (n - 1) / d).margin(1e-9));
    }
  }
}

TEST_CASE("placement: only CPU servers, one at half rate, carries half") {
  std::vector<HostLoad> hosts(4, {1, 1.0, false});
  hosts.insert(hosts.end(), 3, {0, 1.0, true});
  hosts.push_back({0, 0.5, true});
  const HostShares solved = solve_host_shares(hosts);
  CHECK(solved.seconds_per_byte == Approx(4 / 3.5));
  for (std::size_t i = 4; i < 7; ++i)
    CHECK(solved.share[i] == Approx(1 / 3.5));
  CHECK(solved.share[7] == Approx(0.5 / 3.5));
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(solved.share[i] == 0);
}

TEST_CASE("placement: one worker alone keeps its bytes on its host") {
  const std::vector<HostLoad> hosts = {{1, 1.0, true}, {0, 1.0, true}};
  const HostShares solved = solve_host_shares(hosts);
  CHECK(solved.share[0] == Approx(1));
  CHECK(solved.seconds_per_byte == Approx(0).margin(1e-9));
}

TEST_CASE("placement: many workers on one host pull their servers to it") {
  // 6 of 8 workers sit on host 0: n < 2 w there, so its link needs its servers to carry much.
  const std::vector<HostLoad> hosts = {{6, 1.0, true}, {1, 1.0, true}, {1, 1.0, true}};
  const HostShares solved = solve_host_shares(hosts);
  CHECK(solved.share[0] > 0.5);
  CHECK(slowest(hosts, solved.share) == Approx(solved.seconds_per_byte));
}

TEST_CASE("placement: no random spread is faster, on random clusters") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::vector<HostLoad> hosts(1 + random() % 8);
    const double rates[] = {1, 2.5, 10, 0.1};
    for (HostLoad& host : hosts) {
      host = {static_cast<std::uint32_t>(random() % 5), rates[random() % 4], random() % 2 == 0};
    }
    hosts[0].workers += 1;
    hosts[random() % hosts.size()].has_servers = true;
    const HostShares solved = solve_host_shares(hosts);
    INFO("seed " << seed);
    CHECK(std::accumulate(solved.share.begin(), solved.share.end(), 0.0) == Approx(1));
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      CHECK(solved.share[i] >= 0);
      if (!hosts[i].has_servers) CHECK(solved.share[i] == 0);
    }
    CHECK(slowest(hosts, solved.share) <= solved.seconds_per_byte * (1 + 1e-9) + 1e-9);
    for (int i = 0; i < 50; ++i) {
      CHECK(slowest(hosts, random_shares(hosts, random)) >= solved.seconds_per_byte * (1 - 1e-9) - 1e-12);
    }
  }
}

TEST_CASE("placement: within a host by the servers' bandwidths, unknown ones equal") {
  const std::vector<PlacementNode> workers = {{"a", 0}, {"b", 0}};
  CHECK(server_shares(workers, std::vector<PlacementNode>{{"c", 0}}) == std::vector<double>{1});

  auto shares = server_shares(workers, std::vector<PlacementNode>{{"c", 0}, {"c", 0}, {"d", 0}, {"d", 0}});
  for (const double share : shares)
    CHECK(share == Approx(0.25));

  shares = server_shares(workers, std::vector<PlacementNode>{{"c", 3000}, {"c", 1000}});
  CHECK(shares[0] == Approx(0.75));
  CHECK(shares[1] == Approx(0.25));

  // What names no bandwidth counts as the fastest that is named.
  shares = server_shares(workers, std::vector<PlacementNode>{{"c", 1000}, {"d", 2000}, {"e", 0}});
  CHECK(shares[0] == Approx(0.2));
  CHECK(shares[1] == Approx(0.4));
  CHECK(shares[2] == Approx(0.4));
}

TEST_CASE("placement: everything on one host is spread evenly") {
  const std::vector<PlacementNode> workers(4, {"a", 0});
  const auto shares = server_shares(workers, std::vector<PlacementNode>(3, {"a", 0}));
  for (const double share : shares)
    CHECK(share == Approx(1.0 / 3));
}

}  // namespace bps

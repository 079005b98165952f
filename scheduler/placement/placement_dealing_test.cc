// What the placement gives to a server and what the assigner then deals out: whole partitions, one tensor
// after another. Do all links keep to the time of the slowest one, at the end and all the way there?
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "scheduler/placement/partition_assigner.h"
#include "scheduler/placement/placement.h"

namespace bps::placement_dealing_test {
namespace {

constexpr std::uint64_t kPartition = 256 * 1024;
constexpr std::uint64_t kBandwidth = 500'000'000;  // bit/s

struct Cluster {
  std::vector<PlacementNode> workers;
  std::vector<PlacementNode> servers;
};

// n workers, a server on the host of each, and k servers elsewhere, the first of them on a link of `slow`.
Cluster cluster_of(std::uint32_t n, std::uint32_t k, bool colocated, std::uint64_t slow = kBandwidth) {
  Cluster cluster;
  for (std::uint32_t i = 0; i < n; ++i) {
    cluster.workers.push_back({"w" + std::to_string(i), kBandwidth});
    if (colocated) cluster.servers.push_back(cluster.workers.back());
  }
  for (std::uint32_t i = 0; i < k; ++i)
    cluster.servers.push_back({"s" + std::to_string(i), i == 0 ? slow : kBandwidth});
  return cluster;
}

// Seconds of the busiest link when every worker has pushed and pulled what has been dealt so far.
double slowest_link(const Cluster& cluster, const PartitionAssigner& assigner) {
  const auto n = static_cast<double>(cluster.workers.size());
  const auto total = static_cast<double>(assigner.total_bytes());
  double slowest = total * 8 / kBandwidth;  // of workers without a server
  for (std::uint32_t i = 0; i < cluster.servers.size(); ++i) {
    const bool has_worker = cluster.servers[i].host[0] == 'w';
    const auto owned = static_cast<double>(assigner.assigned_bytes(LaneIndex{i}));
    const double moved = has_worker ? total + owned * (n - 2) : owned * n;
    slowest = std::max(slowest, moved * 8 / static_cast<double>(cluster.servers[i].bandwidth_bps));
  }
  return slowest;
}

// t* / M by the closed form of DESIGN.md, which holds for k <= n and a server on every worker's host.
double closed_form(double n, double k) {
  const double d = n * n + k * n - 2 * k;
  return 2 * n * (n - 1) / d * 8 / kBandwidth;
}

void check_dealing(const Cluster& cluster, double tstar_s_per_byte,
                   const std::vector<std::uint64_t>& tensors) {
  PartitionAssigner assigner(server_shares(cluster.workers, cluster.servers), kPartition);
  const auto n = static_cast<double>(cluster.workers.size());
  double worst_behind = 0;
  for (const std::uint64_t tensor : tensors) {
    for (std::uint64_t rest = tensor; rest > 0;) {
      const std::uint64_t bytes = std::min(rest, kPartition);
      assigner.assign(bytes);
      rest -= bytes;
      const double ideal = tstar_s_per_byte * static_cast<double>(assigner.total_bytes());
      worst_behind = std::max(worst_behind, slowest_link(cluster, assigner) - ideal);
    }
  }
  // A link is never busier than its share by more than one partition of every worker, so also at the end.
  double slowest_bps = kBandwidth;
  for (const PlacementNode& server : cluster.servers)
    slowest_bps = std::min(slowest_bps, static_cast<double>(server.bandwidth_bps));
  CHECK(worst_behind <= n * kPartition * 8 / slowest_bps * 1.001);
  const double total = static_cast<double>(assigner.total_bytes());
  CHECK(slowest_link(cluster, assigner) <= tstar_s_per_byte * total * 1.015);
}

}  // namespace

TEST_CASE("placement: dealt out in partitions, a tensor of 100 MB keeps every link near t*") {
  const std::vector<std::uint64_t> tensor = {100'000'000};
  for (const std::uint32_t n : {2u, 4u, 8u}) {
    for (std::uint32_t k = 0; k <= n; ++k) {
      INFO("n=" << n << " k=" << k << " co-located");
      check_dealing(cluster_of(n, k, true), closed_form(n, k), tensor);
    }
  }
  INFO("more servers than workers");
  check_dealing(cluster_of(4, 6, true), 8.0 / kBandwidth, tensor);
  check_dealing(cluster_of(4, 6, false), 8.0 / kBandwidth, tensor);
  INFO("one server on half a link");
  check_dealing(cluster_of(4, 4, false, kBandwidth / 2), 4 / 3.5 * 8 / kBandwidth, tensor);
}

TEST_CASE("placement: dealt out over many tensors, most of them smaller than a partition") {
  std::vector<std::uint64_t> tensors;
  for (int block = 0; block < 40; ++block) {
    for (const std::uint64_t bytes : {1024u, 262'144u, 2'359'296u, 4096u, 8192u, 1'048'576u})
      tensors.push_back(bytes);
  }
  for (std::uint32_t k = 0; k <= 4; ++k) {
    INFO("k=" << k);
    check_dealing(cluster_of(4, k, true), closed_form(4, k), tensors);
  }
}

}  // namespace bps::placement_dealing_test

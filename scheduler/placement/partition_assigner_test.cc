#include "scheduler/placement/partition_assigner.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <set>

namespace bps::partition_assigner_test {
namespace {

constexpr std::uint64_t kPartition = 256 * 1024;

std::vector<double> random_shares(std::mt19937& random, std::size_t lanes) {
  std::vector<double> shares(lanes);
  std::exponential_distribution<double> draw(1);
  double sum = 0;
  for (double& share : shares)
    sum += share = random() % 5 == 0 ? 0 : draw(random);
  if (sum == 0) sum = shares[0] = 1;
  for (double& share : shares)
    share /= sum;
  return shares;
}

}  // namespace

TEST_CASE("assigner: equal lanes take turns") {
  const std::vector<double> shares(4, 0.25);
  PartitionAssigner assigner(shares, kPartition);
  for (std::uint32_t i = 0; i < 40; ++i)
    CHECK(assigner.assign(kPartition) == LaneIndex{i % 4});
}

TEST_CASE("assigner: small tensors spread over all lanes") {
  const std::vector<double> shares(8, 0.125);
  PartitionAssigner assigner(shares, kPartition);
  std::set<LaneIndex> used;
  for (int i = 0; i < 8; ++i)
    used.insert(assigner.assign(400));
  CHECK(used.size() == 8);
}

TEST_CASE("assigner: a lane without a share gets nothing, a small share its part") {
  const std::vector<double> shares = {0, 0.9, 0.1};
  PartitionAssigner assigner(shares, kPartition);
  for (int i = 0; i < 1000; ++i)
    assigner.assign(kPartition);
  CHECK(assigner.assigned_bytes(LaneIndex{0}) == 0);
  CHECK(assigner.assigned_bytes(LaneIndex{1}) == 900 * kPartition);
  CHECK(assigner.assigned_bytes(LaneIndex{2}) == 100 * kPartition);
}

TEST_CASE("assigner: no lane is ever more than a partition ahead of its share, or far behind") {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto shares = random_shares(random, 1 + random() % 40);
    PartitionAssigner assigner(shares, kPartition);
    double worst_ahead = 0;
    double worst_behind = 0;
    for (int i = 0; i < 3000; ++i) {
      // Whole partitions, last ones of any length, and tiny tensors.
      const std::uint64_t bytes =
          random() % 3 == 0 ? kPartition : 4 + random() % (random() % 2 == 0 ? kPartition : 4096);
      assigner.assign(bytes);
      for (std::uint32_t lane = 0; lane < shares.size(); ++lane) {
        const double ahead = static_cast<double>(assigner.assigned_bytes(LaneIndex{lane})) -
                             shares[lane] * static_cast<double>(assigner.total_bytes());
        worst_ahead = std::max(worst_ahead, ahead);
        worst_behind = std::max(worst_behind, -ahead);
      }
    }
    INFO("seed " << seed);
    CHECK(worst_ahead <= kPartition * 1.001);
    CHECK(worst_behind <= kPartition * 1.5);
  }
}

TEST_CASE("assigner: the same partitions give the same owners") {
  std::mt19937 random(7);
  const auto shares = random_shares(random, 17);
  PartitionAssigner one(shares, kPartition);
  PartitionAssigner two(shares, kPartition);
  for (int i = 0; i < 500; ++i) {
    const std::uint64_t bytes = 1 + random() % kPartition;
    CHECK(one.assign(bytes) == two.assign(bytes));
  }
}

}  // namespace bps::partition_assigner_test

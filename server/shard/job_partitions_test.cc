#include "server/shard/job_partitions.h"

#include <algorithm>

#include "server/testing/aggregator_harness.h"

namespace bps::job_partitions_test {
namespace {

using Ids = std::vector<std::uint32_t>;

struct World {
  JobPartition& add(std::uint32_t id, std::uint32_t tensor) {
    JobPartition& partition = partitions.add(PartitionId{id}, TensorId{tensor});
    PartitionShape shape;
    shape.partition = PartitionId{id};
    shape.elements = 1;
    partition.aggregator = make_aggregator(shape, contributors, pools.memory());
    return partition;
  }
  template <class Walk>
  static Ids seen(Walk walk) {
    Ids ids;
    walk([&](PartitionId id, const JobPartition&) { ids.push_back(id.value); });
    std::sort(ids.begin(), ids.end());
    return ids;
  }
  Ids of(std::uint32_t tensor) {
    return seen([&](auto visit) { partitions.visit_tensor(TensorId{tensor}, visit); });
  }
  Ids here() {
    return seen([&](auto visit) { partitions.visit_here(visit); });
  }
  Ids all() {
    return seen([&](auto visit) { partitions.visit_all(visit); });
  }

  std::vector<Contributor> contributors = ranks(1);
  TestPools pools;
  JobPartitions partitions;
};

TEST_CASE("job partitions: found by number and by tensor until they are dropped") {
  World world;
  for (const std::uint32_t id : {1, 2, 3})
    world.add(id, id == 3 ? 6 : 5);
  CHECK(world.of(5) == Ids{1, 2});
  CHECK(world.of(7).empty());
  world.partitions.drop(PartitionId{1});
  world.partitions.drop(PartitionId{9});
  CHECK(world.of(5) == Ids{2});
  CHECK(world.partitions.find(PartitionId{1}) == nullptr);
  CHECK(world.partitions.was_dropped(PartitionId{1}));
  CHECK_FALSE(world.partitions.was_dropped(PartitionId{2}));
  CHECK(world.partitions.known() == 3);
  world.add(1, 5);  // it comes back
  CHECK_FALSE(world.partitions.was_dropped(PartitionId{1}));
  CHECK(world.of(5) == Ids{1, 2});
  world.partitions.drop(TensorId{5});
  world.partitions.drop(TensorId{5});
  CHECK(world.of(5).empty());
  CHECK(world.here() == Ids{3});
  CHECK(world.partitions.was_dropped(PartitionId{1}));
  world.partitions.drop(PartitionId{3});  // the last one of its tensor
  CHECK(world.of(6).empty());
  world.add(3, 6);
  CHECK(world.of(6) == Ids{3});
}

TEST_CASE("job partitions: a dropped one stays where it is while lanes refer to it") {
  World world;
  JobPartition& first = world.add(1, 5);
  first.references = 1;
  world.partitions.drop(TensorId{5});
  CHECK(first.dropped);
  JobPartition& second = world.add(1, 5);
  second.references = 1;
  CHECK(world.here() == Ids{1});
  CHECK(world.all() == Ids{1, 1});
  world.partitions.drop(PartitionId{1});
  world.partitions.reap();
  CHECK(world.all() == Ids{1, 1});
  first.references = 0;
  world.partitions.reap();
  CHECK(world.all() == Ids{1});
  CHECK(second.dropped);
  second.references = 0;
  world.partitions.reap();
  CHECK(world.all().empty());
  CHECK(world.pools.slots.bytes_in_use() == 0);
}

}  // namespace
}  // namespace bps::job_partitions_test

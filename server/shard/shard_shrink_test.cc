// A member of a job is lost, on a shard with lanes.
#include "server/testing/shard_harness.h"

namespace bps::shard_test {
namespace {

Shrunk shrunk(std::uint32_t rank, std::uint32_t generation) {
  return Shrunk{
      1, kRun, Generation{generation}, {Rank{rank}}, 0, "rank " + std::to_string(rank) + " is gone"};
}

}  // namespace

TEST_CASE("shrink: the lost one's lane is closed and stays so, the others get their answer") {
  World world(3);
  world.declare(1, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  const auto ghost = world.open(2);
  World::push(*a, 1, 0, {1, 2});
  World::push(*b, 1, 0, {3, 4});
  REQUIRE(World::begin(*ghost, 1, 0, 2) != nullptr);  // half of it comes
  world.shard->shrink(shrunk(2, 2));
  CHECK(ghost->closed);
  REQUIRE(all<Refused>(*ghost).size() == 1);
  CHECK(all<Refused>(*ghost)[0].code == ErrorCode::peer_lost);
  CHECK(all<Refused>(*ghost)[0].message == "the job goes on without you: rank 2 is gone");
  REQUIRE(all<Aggregate>(*a).size() == 1);
  CHECK(all<Aggregate>(*a)[0].weight == 2);
  CHECK(all<Aggregate>(*a)[0].generation == Generation{2});
  CHECK(last_payload(*b) == std::vector<float>{4, 6});

  const auto again = world.open(2, 2);
  CHECK(again->closed);
  REQUIRE(all<Refused>(*again).size() == 1);
  CHECK(all<Refused>(*again)[0].code == ErrorCode::peer_lost);
  CHECK(all<Refused>(*again)[0].message == "the job goes on without rank 2: rank 2 is gone");
}

TEST_CASE("shrink: who has not heard of it yet is taken, who is ahead is not") {
  const ExpectLog ahead("newer than this server's");
  World world(2);
  world.declare(1, 2);
  world.shard->shrink(shrunk(1, 2));
  const auto a = world.open(0);  // in generation 0
  REQUIRE_FALSE(a->closed);
  World::push(*a, 1, 0, {1, 2});
  CHECK(all<Aggregate>(*a).size() == 1);
  release(*a);
  PushPull newer = World::header(1, 1);
  newer.generation = Generation{3};
  World::push(*a, newer, {1, 2});
  CHECK(a->closed);
  REQUIRE(all<Refused>(*a).size() == 1);
  CHECK(all<Refused>(*a)[0].code == ErrorCode::peer_lost);
}

TEST_CASE("shrink: what is declared or moves here later does without the lost ones, too") {
  World world(2);
  world.shard->shrink(shrunk(1, 2));
  world.shard->shrink(shrunk(1, 2));  // said again
  world.declare(1, 2);
  world.move(2, 2, 2);
  const auto a = world.open(0);
  World::push(*a, 1, 0, {1, 2});
  REQUIRE(all<Aggregate>(*a).size() == 1);
  CHECK(all<Aggregate>(*a)[0].weight == 1);
  Message resume = Resume{kRun, Epoch{2}, {}, {{PartitionId{2}, Round{7}}}};
  a->handler->on_message(resume, {});
  REQUIRE(all<Resumed>(*a).size() == 1);
  CHECK(all<Resumed>(*a)[0].round == Round{7});
}

TEST_CASE("shrink: who had dropped a tensor is lost like others, and nobody misses it there") {
  World world(3);
  world.declare(1, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  const WorkerLeft drop{kRun, Rank{2}, true, {TensorId{1}}};
  const bool is_late = GENERATE(false, true);  // the scheduler says it again, too
  if (!is_late) world.shard->worker_left(drop);
  world.shard->shrink(shrunk(2, 2));
  world.shard->worker_left(drop);
  World::push(*a, 1, 0, {1, 2});
  World::push(*b, 1, 0, {3, 4});
  REQUIRE(all<Aggregate>(*a).size() == 1);
  CHECK(all<Aggregate>(*a)[0].weight == 2);
  CHECK(last_payload(*b) == std::vector<float>{4, 6});
}

}  // namespace bps::shard_test

// Declarations that take memory while rounds go on.
#include "server/testing/shard_harness.h"

namespace bps::shard_test::shard_grant_test {
namespace {

// Needs three steps: two slots of half a MiB, and a buffer for each of the lanes.
constexpr std::uint64_t kLargeElements = MemoryGrant::kStepBytes / 2 / sizeof(float);

DeclareSlices large_tensor(std::uint32_t id) {
  DeclareSlices declare{0, kRun, {}, false, {World::tensor(id, kLargeElements)}};
  declare.tensors[0].partitions.push_back({PartitionId{id + 1}, 0, kLargeElements});
  return declare;
}

TEST_CASE("while a declaration takes its memory the rounds of others go on, and nothing of it is there yet") {
  World world(2);
  world.declare(1, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  std::optional<Status> granted;
  world.shard->declare(large_tensor(2), [&](const Status& status, std::uint64_t) { granted = status; });
  CHECK_FALSE(granted);
  const bool leaves = GENERATE(false, true);
  std::size_t steps = 0;
  for (std::uint64_t round = 0; !granted; ++round) {
    if (steps == 0) {
      world.push(*a, 1, round, {1, 1});
      world.push(*b, 1, round, {2, 2});
      CHECK(last_payload(*a) == std::vector<float>{3, 3});
      if (leaves) world.shard->worker_left({kRun, Rank{0}, false});
    }
    REQUIRE(world.loop.step());
    REQUIRE(++steps < 100);
  }
  CHECK(steps >= 2);
  CHECK(granted->ok());
  const std::vector<float> values(kLargeElements, 1);
  world.push(*b, 2, 0, values);
  CHECK(all<RoundFailed>(*b).size() ==
        (leaves ? 1 : 0));  // that rank 0 has left is known of the new ones, too
  if (leaves) return;
  world.push(*a, 2, 0, values);
  CHECK(last_payload(*a) == std::vector<float>(kLargeElements, 2));
}

TEST_CASE("a job that ends while its declaration takes memory gives all of it back") {
  World world(2);
  std::optional<Status> granted;
  world.shard->declare(large_tensor(2), [&](const Status& status, std::uint64_t) { granted = status; });
  CHECK(world.shard->bytes_in_use() > 0);
  world.shard->end_job(kRun, Error{}, [] {});
  CHECK(granted);
  world.loop.run_for(ServerLane::kFarewell);
  CHECK(world.shard->bytes_in_use() == 0);
  world.shard->declare(large_tensor(2),
                       [&](const Status&, std::uint64_t) { granted.reset(); });  // nobody is there
  CHECK_FALSE(granted);
}

TEST_CASE("a lane that receives while its job gets larger buffers keeps its own until it is done") {
  World world(2);
  world.declare(1, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  world.push(*a, 1, 0, {1, 2});
  std::byte* const place = world.begin(*b, 1, 0, 2);
  REQUIRE(place != nullptr);
  const std::vector<float> larger(1000, 1);
  std::uint64_t replaced = 0;
  world.shard->declare(DeclareSlices{0, kRun, {}, false, {World::tensor(2, larger.size())}},
                       [&](const Status&, std::uint64_t bytes) { replaced = bytes; });
  CHECK(replaced == lane_buffers(1, 2));
  bool gone = false;
  world.shard->when_replaced_are_gone(kRun, [&] { gone = true; });
  CHECK_FALSE(gone);
  if (GENERATE(false, true)) {
    bool gone_as_well = false;
    world.shard->end_job(kRun, Error{}, [] {});
    world.shard->when_replaced_are_gone(kRun, [&] { gone_as_well = true; });
    CHECK_FALSE(gone);
    world.loop.run_for(ServerLane::kFarewell);
    CHECK(gone);
    CHECK(gone_as_well);
    return;
  }
  const std::vector<float> two{2, 2};
  std::memcpy(place, two.data(), 8);
  Message message = World::header(1, 0);
  b->handler->on_message(message, {place, 8});
  CHECK(gone);
  CHECK(last_payload(*a) == std::vector<float>{3, 4});
  release(*a);
  release(*b);
  const auto own = [](std::uint64_t elements) {
    return reserved_bytes(DType::f32, elements, Mode::sync).own;
  };
  CHECK(world.shard->bytes_in_use() == own(2) + own(larger.size()) + lane_buffers(2, larger.size()));
  for (std::uint64_t round = 0; round < 3; ++round) {
    world.push(*a, 2, round, larger);
    world.push(*b, 2, round, larger);
    release(*a);
    release(*b);
  }
  CHECK(last_payload(*b) == std::vector<float>(1000, 2));
}

TEST_CASE("a round that is open while its job gets a larger reserve of accumulators keeps what it has") {
  World world(3, 0);  // nothing is shared
  const auto declare = [&](std::uint32_t id, std::uint64_t elements) {
    TensorSlices tensor = World::tensor(id, elements);
    tensor.dtype = DType::i32;
    std::uint64_t replaced = 0;
    world.shard->declare(DeclareSlices{0, kRun, {}, false, {tensor}},
                         [&](const Status&, std::uint64_t bytes) { replaced = bytes; });
    return replaced;
  };
  CHECK(declare(1, 2) == 0);
  const auto a = world.open(0), b = world.open(1), c = world.open(2);
  PushPull header = World::header(1, 0);
  header.dtype = DType::i32;
  header.rendezvous = true;
  for (const auto& wire : {b, c}) {
    Message request = header;
    wire->handler->on_message(request, {});
  }
  header.rendezvous = false;
  world.push(*a, header, {0, 0});
  REQUIRE(all<ClearToSend>(*b).size() == 1);
  world.push(*b, header, {0, 0});
  CHECK(declare(2, 1000) == BufferPool::class_bytes(2 * sizeof(std::int64_t)));
  CHECK(declare(3, 2000) == 0);  // what has come since is idle
  bool gone = false;
  world.shard->when_replaced_are_gone(kRun, [&] { gone = true; });
  SECTION("until it is complete") {
    CHECK_FALSE(gone);
    world.push(*c, header, {0, 0});
    CHECK(all<Aggregate>(*a).size() == 1);
  }
  SECTION("or its tensor is dropped") {
    CHECK_FALSE(gone);
    world.shard->drop(DropTensors{0, kRun, {TensorId{1}}, {}});
  }
  SECTION("or its job has ended") {
    CHECK_FALSE(gone);
    world.shard->end_job(kRun, Error{}, [] {});
    world.loop.run_for(ServerLane::kFarewell);
    CHECK(world.shard->bytes_in_use() == 0);
  }
  CHECK(gone);
}

}  // namespace
}  // namespace bps::shard_test::shard_grant_test

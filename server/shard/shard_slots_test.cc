// Tensors in mode slot on a shard: what they share, and when it goes.
#include "server/testing/shard_harness.h"

namespace bps::shard_test {
namespace {

constexpr std::uint64_t kElements = 1024;
const std::uint64_t kSlot = BufferPool::class_bytes(kElements * sizeof(float));

// Of two workers, with a pool of one slot.
struct Slots : World {
  Slots() : World(2), a(open(0)), b(open(1)) {}

  void declare_slot(std::uint32_t id, std::uint64_t elements = kElements) {
    TensorSlices slices = tensor(id, elements);
    slices.mode = Mode::slot;
    shard->declare(DeclareSlices{0, kRun, {}, false, {slices}});
  }
  static void push(Wire& wire, std::uint32_t partition, std::uint64_t round, float value) {
    World::push(wire, partition, round, std::vector<float>(kElements, value));
  }
  static void stored(Wire& wire, std::uint32_t partition, std::uint64_t round) {
    Message message = Stored{kRun, PartitionId{partition}, Round{round}, {}, {}};
    wire.handler->on_message(message, {});
  }
  void drop(std::uint32_t id) { shard->drop(DropTensors{0, kRun, {TensorId{id}}, {}}); }
  // Besides the lanes' buffers.
  std::uint64_t in_use() const { return shard->bytes_in_use() - lanes; }

  std::uint64_t lanes = lane_buffers(2, kElements);
  std::shared_ptr<Wire> a, b;
};

TEST_CASE("slots: a job's tensors share one buffer, round after round, and it goes with the last of them") {
  Slots world;
  for (const std::uint32_t id : {1u, 2u, 3u})
    world.declare_slot(id);
  CHECK(world.in_use() == kSlot);
  // Both begin both, in opposite orders.
  Slots::push(*world.a, 1, 0, 1);
  Slots::push(*world.b, 2, 0, 2);
  Slots::push(*world.a, 2, 0, 3);
  Slots::push(*world.b, 1, 0, 4);
  CHECK(all<Aggregate>(*world.a).size() == 1);
  CHECK(last_payload(*world.a)[0] == 5.0f);
  for (const auto& wire : {world.a, world.b}) {
    release(*wire);
    Slots::stored(*wire, 2, 0);
  }
  CHECK(all<Aggregate>(*world.a).size() == 1);
  world.loop.run_until_idle();  // in a turn of its own
  REQUIRE(all<Aggregate>(*world.a).size() == 2);
  CHECK(last_payload(*world.a)[0] == 5.0f);
  for (const auto& wire : {world.a, world.b}) {
    release(*wire);
    Slots::stored(*wire, 1, 0);
  }
  CHECK(world.in_use() == kSlot);
  world.drop(1);
  world.drop(2);
  CHECK(world.in_use() == kSlot);
  world.drop(3);
  CHECK(world.in_use() == 0);
  world.declare_slot(4);
  CHECK(world.in_use() == kSlot);
}

TEST_CASE("slots: the buffer grows with the largest partition") {
  Slots world;
  world.declare_slot(1, kElements / 4);
  const std::uint64_t lanes = lane_buffers(2, kElements / 4);
  CHECK(world.shard->bytes_in_use() - lanes == BufferPool::class_bytes(kElements));
  world.declare_slot(2);
  CHECK(world.in_use() == kSlot);
}

TEST_CASE("slots: what is dropped while it is read keeps its memory, and new tensors have other memory") {
  Slots world;
  world.declare_slot(1);
  Slots::push(*world.a, 1, 0, 1);
  Slots::push(*world.b, 1, 0, 2);
  world.drop(1);
  CHECK(world.in_use() == kSlot);
  CHECK(world.shard->bytes_doomed() >= kSlot);
  world.declare_slot(2);
  CHECK(world.in_use() == 2 * kSlot);
  Slots::push(*world.a, 2, 0, 3);
  Slots::push(*world.b, 2, 0, 4);
  CHECK(last_payload(*world.a)[0] == 7.0f);
  release(*world.a);
  release(*world.b);
  CHECK(world.in_use() == kSlot);
  CHECK(world.shard->bytes_doomed() == 0);
}

TEST_CASE("slots: what is dropped while it is read counts as such until its job's lanes are closed") {
  Slots world;
  world.declare_slot(1);
  Slots::push(*world.a, 1, 0, 1);
  Slots::push(*world.b, 1, 0, 2);
  world.drop(1);
  world.shard->end_job(kRun, {}, [] {});
  CHECK(world.in_use() == kSlot);
  CHECK(world.shard->bytes_doomed() >= kSlot);
  world.loop.run_for(ServerLane::kFarewell);
  CHECK(world.shard->bytes_in_use() == 0);
  CHECK(world.shard->bytes_doomed() == 0);
}

TEST_CASE("slots: jobs do not wait for each other, and what ends gives all back") {
  Slots world;
  world.declare_slot(1);
  Slots::push(*world.a, 1, 0, 1);
  Slots::push(*world.b, 1, 0, 2);  // has the buffer
  const JobRun other{kRun.value + 1};
  world.shard->open_job(testing::job_of(other, 1));
  TensorSlices slices = World::tensor(1, kElements);
  slices.mode = Mode::slot;
  world.shard->declare(DeclareSlices{0, other, {}, false, {slices}});
  auto wire = std::make_shared<Wire>();
  world.shard->admit(testing::hello_of(other, 0, Session{1}), Welcome{},
                     std::make_unique<FakeConnection>(wire));
  PushPull header = World::header(1, 0);
  header.job_run = other;
  World::push(*wire, header, std::vector<float>(kElements, 9));
  CHECK(last_payload(*wire)[0] == 9.0f);
  bool ended = false;
  for (const JobRun run : {kRun, other})
    world.shard->end_job(run, {}, [&] { ended = true; });
  world.loop.run_until_idle();
  CHECK(ended);
  CHECK(world.shard->bytes_in_use() == 0);
}

}  // namespace
}  // namespace bps::shard_test

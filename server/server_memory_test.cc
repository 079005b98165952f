// What a server does when the system has less memory than jobs want.
#include <algorithm>

#include "proto/base/testing/address_limit.h"
#include "proto/base/testing/not_run.h"
#include "server/testing/server_harness.h"

namespace bps::server_test {
namespace {

// Two slots and a receive buffer, in one shard and for one worker.
constexpr std::uint64_t kFourMiBs = 4 * kMiB / sizeof(float);
constexpr std::uint64_t kKeptFree = 32 * kMiB;

// A job of two ranks, rank 0 ahead of rank 1.
struct OtherJob {
  explicit OtherJob(World& its_world) : world(its_world) {
    REQUIRE(world.open_job(kRun, 2).code == ErrorCode::ok);
    REQUIRE(world.declare(kRun, 1, values.size()).code == ErrorCode::ok);
    a = &world.lane(kRun, 0, 0);
    b = &world.lane(kRun, 1, 0);
  }
  void round() {
    World::push(*a, kRun, 10, values, next);
    World::push(*b, kRun, 10, values, next++);
    world.until([&] { return answers(*a) == next && answers(*b) == next; });
    CHECK(b->payload == std::vector<float>(values.size(), 2));
  }
  static std::uint64_t answers(const Peer& peer) {
    return static_cast<std::uint64_t>(
        std::count_if(peer.messages.begin(), peer.messages.end(),
                      [](const Message& message) { return std::holds_alternative<Aggregate>(message); }));
  }
  World& world;
  const std::vector<float> values = std::vector<float>(100'000, 1);
  Peer* a = nullptr;
  Peer* b = nullptr;
  std::uint64_t next = 0;
};

TEST_CASE("a declaration beyond what the system has left is refused with the amounts") {
  World world(1);
  MemoryBound left{kKeptFree + 10 * kMiB, "the machine"};
  world.options.headroom = [&left] { return left; };
  world.serve();
  REQUIRE(world.open_job(JobRun{1}, 1).code == ErrorCode::ok);
  const Error refused = world.declare(JobRun{1}, 1, kFourMiBs);
  CHECK(refused.code == ErrorCode::out_of_memory);
  CHECK(refused.message ==
        "1 tensors of job 'job' from 'weights' on need 12.0 MiB; 0 bytes are reserved, and this server can "
        "have "
        "10.0 MiB now: 42.0 MiB are left (the machine)");
  CHECK(world.server->ledger().reserved() == 0);
  left.bytes += 2 * kMiB;
  CHECK(world.declare(JobRun{1}, 1, kFourMiBs).code == ErrorCode::ok);
  // 8 MiB of it are taken, so that the system has less left; the second slot is promised.
  left.bytes = kKeptFree + 15 * kMiB;
  REQUIRE(world.open_job(JobRun{2}, 1).code == ErrorCode::ok);
  CHECK(world.declare(JobRun{2}, 1, kFourMiBs).code == ErrorCode::out_of_memory);
  left.bytes += kMiB;
  CHECK(world.declare(JobRun{2}, 1, kFourMiBs).code == ErrorCode::ok);
}

TEST_CASE("what is promised is told whenever it changes: tensors, what shards share, and a sixteenth") {
  World world(1);
  std::vector<std::uint64_t> told;
  world.options.promised = [&told](std::uint64_t bytes) { told.push_back(bytes); };
  world.serve();
  // Reorder budget and accumulators, of 64 MiB.
  const std::uint64_t shared = 64 * kMiB - world.server->ledger().memory_max();
  REQUIRE(world.open_job(JobRun{1}, 1).code == ErrorCode::ok);
  CHECK(told.empty());
  REQUIRE(world.declare(JobRun{1}, 1, kFourMiBs).code == ErrorCode::ok);
  REQUIRE_FALSE(told.empty());
  CHECK(told.back() == 12 * kMiB + shared + (12 * kMiB + shared) / 16);
  world.scheduler->connection().send(JobEnded{JobRun{1}, {}});
  world.until([&] { return world.server->ledger().reserved() == 0; });
  CHECK(told.back() == shared + shared / 16);
}

TEST_CASE("what a job that has ended still holds is waited for") {
  World world(1);
  constexpr std::uint64_t kMachine = 12 * kMiB;
  world.options.headroom = [&world] {
    return MemoryBound{kKeptFree + kMachine - world.server->shards()[0]->bytes_in_use(), "the machine"};
  };
  world.serve();
  for (const std::uint64_t run : {1, 2})
    REQUIRE(world.open_job(JobRun{run}, 1).code == ErrorCode::ok);
  REQUIRE(world.declare(JobRun{1}, 1, kFourMiBs).code == ErrorCode::ok);
  Peer& lane = world.lane(JobRun{1}, 0, 0);
  world.scheduler->connection().send(JobEnded{JobRun{1}, {}});
  DeclareSlices next = World::slices(JobRun{2}, 1, 1, kFourMiBs);
  next.request = 7;
  world.scheduler->connection().send(next);
  CHECK(world.open_job(JobRun{3}, 1).code == ErrorCode::ok);
  CHECK(world.scheduler->find<Ack>()->request == 0);  // nothing has been said of the declaration
  world.scheduler->messages.clear();
  lane.close();
  world.until([&] { return world.scheduler->find<Ack>() != nullptr; });
  CHECK(world.scheduler->find<Ack>()->request == 7);
  CHECK(world.scheduler->find<Ack>()->error.code == ErrorCode::ok);
}

std::uint64_t idle(const World& world) {
  std::uint64_t bytes = 0;
  for (const auto& shard : world.server->shards())
    bytes += shard->bytes_idle();
  return bytes;
}

// Rank 0 and others push two partitions of 4 MiB each, and what their round needs beside the slot is idle
// afterwards. Promised in the end are 3 MiB less than the machine has.
struct Tight {
  DType dtype;
  std::vector<std::uint32_t> order;  // of the ranks
  std::uint64_t machine;
  std::uint64_t idle;
  std::uint64_t idle_in_the_end;  // if the next declaration, which lacks 5 MiB, is accepted
};
// What waits for rank 0 is in the reorder budgets, 12 MiB in each shard.
const Tight kWaiting{DType::f32, {1, 2, 3, 0}, 75 * kMiB, 24 * kMiB, 16 * kMiB};
// The sum of ranks 0 and 1 has accumulators until rank 2 comes, 8 MiB in each shard; rank 3 waits.
const Tight kAccumulators{DType::bf16, {0, 1, 3, 2}, 107 * kMiB, 24 * kMiB, 4 * kMiB};

TEST_CASE("a tight declaration takes from idle memory only what it needs, and a refused one nothing") {
  const Tight tight = GENERATE(kWaiting, kAccumulators);
  World world(2);
  world.options.memory_max = 512 * kMiB;
  world.options.headroom = [&] {
    std::uint64_t taken = idle(world);
    for (const auto& shard : world.server->shards())
      taken += shard->bytes_in_use();
    return MemoryBound{kKeptFree + tight.machine - taken, "the machine"};
  };
  world.serve();
  const auto declare = [&](JobRun run, std::uint64_t bytes) {
    DeclareSlices tensor = World::slices(run, 1, 2, bytes / size_of(tight.dtype));
    tensor.tensors[0].dtype = tight.dtype;
    return world.ask(tensor).code;
  };
  REQUIRE(world.open_job(kRun, 4).code == ErrorCode::ok);
  REQUIRE(declare(kRun, 4 * kMiB) == ErrorCode::ok);
  const TimePoint declared = world.loop.now();
  const std::vector<float> values(kFourMiBs, 1);
  for (const std::uint32_t shard : {0, 1}) {
    const auto bytes_in = [&] { return world.server->shards()[shard]->stats().bytes_in; };
    for (const std::uint32_t rank : tight.order) {
      const std::uint64_t before = bytes_in();
      World::push(world.lane(kRun, rank, shard), kRun, 10 + shard, values, 0, nullptr, tight.dtype);
      world.until([&] { return bytes_in() == before + values.size() * sizeof(float); });
    }
  }
  // For so long the server trusts its last look at the system.
  world.until([&] { return world.loop.now() > declared + 100ms; });
  REQUIRE(idle(world) == tight.idle);
  REQUIRE(world.open_job(JobRun{2}, 1).code == ErrorCode::ok);
  SECTION("refused") {
    CHECK(declare(JobRun{2}, 8 * kMiB) == ErrorCode::out_of_memory);
    CHECK(idle(world) == tight.idle);
  }
  SECTION("accepted") {
    // A slot and a receive buffer of 4 MiB in each shard. They lack 5 MiB, which are in regions of 4 MiB. Of
    // bf16 also accumulators of 8 MiB: the first shard gives back its idle ones for the rest of those 5 MiB,
    // the other one uses them.
    CHECK(declare(JobRun{2}, 4 * kMiB) == ErrorCode::ok);
    CHECK(idle(world) == tight.idle_in_the_end);
  }
}

TEST_CASE("declarations of other jobs do not wait for one that is being granted; drops of its own do") {
  World world(1);
  world.options.memory_max = 1024 * kMiB;
  world.serve();
  REQUIRE(world.open_job(JobRun{1}, 1).code == ErrorCode::ok);
  REQUIRE(world.open_job(JobRun{2}, 1).code == ErrorCode::ok);
  world.scheduler->messages.clear();
  DeclareSlices large = World::slices(JobRun{1}, 1, 1, kFourMiBs);
  for (std::uint32_t i = 1; i < 16; ++i)
    large.tensors[0].partitions.push_back({PartitionId{10 + i}, 0, kFourMiBs});
  large.request = 1;
  DeclareSlices small = World::slices(JobRun{2}, 1, 1, 1);
  small.request = 2;
  DeclareSlices behind = World::slices(JobRun{1}, 9, 1, 1);
  behind.request = 3;
  world.scheduler->connection().send(large);
  world.scheduler->connection().send(large);  // a scheduler that is back asks again
  world.scheduler->connection().send(DropTensors{0, JobRun{1}, {TensorId{1}}, {}});
  world.scheduler->connection().send(behind);
  world.scheduler->connection().send(small);
  std::vector<std::uint64_t> acknowledged;
  world.until([&] {
    acknowledged.clear();
    for (const Message& message : world.scheduler->messages) {
      if (const auto* ack = std::get_if<Ack>(&message)) acknowledged.push_back(ack->request);
    }
    return acknowledged.size() == 4;
  });
  CHECK(acknowledged == std::vector<std::uint64_t>{2, 1, 1, 3});
  world.until([&] { return world.server->ledger().reserved() < 20 * kMiB; });
}

// Shadow memory counts against the limit, too. Clang has no macros for it.
#if defined(__has_feature)
#define BPS_HAS_FEATURE(feature) __has_feature(feature)
#else
#define BPS_HAS_FEATURE(feature) 0
#endif
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !BPS_HAS_FEATURE(thread_sanitizer) && \
    !BPS_HAS_FEATURE(address_sanitizer)

TEST_CASE("if the system gives too little for a declaration it is refused, and rounds of others go on") {
  World world(2);
  world.options.memory_max = 4096 * kMiB;
  world.serve();
  OtherJob other(world);
  other.round();
  REQUIRE(world.open_job(JobRun{2}, 1).code == ErrorCode::ok);
  const std::uint64_t reserved = world.server->ledger().reserved();
  DeclareSlices large = World::slices(JobRun{2}, 9, 2, kFourMiBs);
  for (std::uint32_t i = 2; i < 40; ++i)
    large.tensors[0].partitions.push_back({PartitionId{90 + i}, i % 2, kFourMiBs});
  {
    const testing::AddressLimit limit(96 * kMiB);
    if (!limit.is_set()) return testing::not_run("server memory", "this process may not limit itself");
    const Error refused = world.ask(large);
    CHECK(refused.code == ErrorCode::out_of_memory);
    CHECK_THAT(refused.message, Catch::Contains("1 tensors of job 'job' from 'weights' on need") &&
                                    Catch::Contains("the system gave") && Catch::Contains("from the start"));
    for (int i = 0; i < 3; ++i)
      other.round();
    // What was granted in part is free again: this fits.
    CHECK(world.declare(JobRun{2}, 6, kFourMiBs).code == ErrorCode::ok);
  }
  CHECK(world.ask(large).code == ErrorCode::ok);
  other.round();
  world.scheduler->connection().send(JobEnded{JobRun{2}, {}});
  world.until([&] { return world.server->ledger().reserved() == reserved; });
}

#endif

}  // namespace
}  // namespace bps::server_test

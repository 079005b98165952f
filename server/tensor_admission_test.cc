#include "server/tensor_admission.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "proto/base/loop/virtual_loop.h"
#include "server/testing/job_harness.h"
#include "server/testing/shard_harness.h"

namespace bps::tensor_admission_test {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr JobRun kFirst{1}, kSecond{2};

// Over two shards, all on one loop of virtual time.
struct World final : TensorAdmission::Owner {
  explicit World(std::uint64_t memory_max, std::function<MemoryBound()> headroom = {})
      : shards(loop), admission(loop, shards, {memory_max, 0, 2}, std::move(headroom), *this, log) {
    for (std::uint32_t i = 0; i < 2; ++i)
      shards.add(std::make_shared<Shard>(loop, ShardIndex{i}, kMiB, log));
    for (const JobRun run : {kFirst, kSecond})
      open(run);
    loop.run_until_idle();
  }
  void open(JobRun run, std::uint32_t workers = 1) {
    const OpenJob job = testing::job_of(run, workers);
    REQUIRE(admission.ledger().open(job).ok());
    shards.on_all([job](Shard& shard, std::uint32_t) { shard.open_job(job); }, [] {});
  }
  std::uint64_t connection_number() const override { return connection; }
  void acknowledge(TensorAdmission::Request request, const Error& error) override {
    if (request.connection == connection) said.emplace_back(request.number, error.code);
  }
  void on_reserved() override { told_reserved = reserved(); }

  // A partition of so many MiB on each shard. It needs thrice as much: two slots and a receive buffer.
  // Or `count` such partitions, which need as much each, but share the buffer.
  void declare(std::uint64_t request, JobRun run, std::uint32_t tensor, std::uint64_t mebibytes,
               std::uint32_t count = 1, Mode mode = Mode::sync) {
    DeclareSlices declare;
    declare.request = request;
    declare.job_run = run;
    TensorSlices& slices = declare.tensors.emplace_back();
    slices.tensor = TensorId{tensor};
    slices.name = "t" + std::to_string(tensor);
    slices.mode = mode;
    for (std::uint32_t i = 0; i < 2 * count; ++i)
      slices.partitions.push_back({PartitionId{tensor * 1000 + i}, i % 2, mebibytes * kMiB / sizeof(float)});
    admission.handle(declare);
  }
  void end(JobRun run) { admission.end(JobEnded{run, {}}); }
  std::uint64_t reserved() const { return admission.ledger().reserved(); }
  std::uint64_t idle() const {
    std::uint64_t bytes = 0;
    for (const auto& shard : shards.all())
      bytes += shard->bytes_idle();
    return bytes;
  }
  // What a machine with so much for this server has left.
  MemoryBound left_of(std::uint64_t machine) const {
    std::uint64_t taken = idle();
    for (const auto& shard : shards.all())
      taken += shard->bytes_in_use();
    return {MemoryRoom::kKeptFree + machine - taken, "the machine"};
  }

  using Said = std::vector<std::pair<std::uint64_t, ErrorCode>>;
  VirtualLoop loop;
  Logger log{"server",
             LogTarget::to_callback([](LogLevel, std::string_view, std::string_view) {}, LogLevel::debug)};
  std::uint64_t connection = 1;
  Said said;
  std::uint64_t told_reserved = 0;
  ShardSet shards;
  TensorAdmission admission;
};

using Said = World::Said;

TEST_CASE("tensor admission: one after the other in a job, drops in their place, other jobs meanwhile") {
  World world(1024 * kMiB);
  world.declare(1, kFirst, 1, 32);
  world.admission.handle(DropTensors{0, kFirst, {TensorId{1}}, {}});
  world.declare(2, kFirst, 1, 1);  // the same tensor, in another size: not before the drop
  world.declare(3, kSecond, 1, 1);
  world.loop.run_until_idle();
  CHECK(world.said == Said{{3, ErrorCode::ok}, {1, ErrorCode::ok}, {2, ErrorCode::ok}});
  CHECK(world.reserved() == 2 * 32 * kMiB + 2 * 2 * kMiB + 2 * 3 * kMiB);
  CHECK(world.told_reserved == world.reserved());
}

TEST_CASE("tensor admission: one that waits for memory that is being freed stops those behind it") {
  World world(2 * 12 * kMiB);
  world.declare(1, kFirst, 1, 4);
  world.loop.run_until_idle();
  world.end(kFirst);
  world.declare(2, kSecond, 1, 4);
  world.declare(3, kSecond, 2, 4);
  CHECK(world.said == Said{{1, ErrorCode::ok}});
  world.loop.run_until_idle();
  CHECK(world.said == Said{{1, ErrorCode::ok}, {2, ErrorCode::ok}, {3, ErrorCode::out_of_memory}});
  CHECK(world.reserved() == 2 * 12 * kMiB);
  CHECK(world.told_reserved == world.reserved());
}

TEST_CASE("tensor admission: a scheduler that is back asks again for what waits, and drops stay") {
  World world(1024 * kMiB);
  world.declare(1, kFirst, 1, 32);
  world.admission.handle(DropTensors{0, kFirst, {TensorId{1}}, {}});
  world.declare(2, kFirst, 2, 1);
  ++world.connection;
  world.admission.taken_up();
  world.declare(3, kFirst, 2, 1);
  world.loop.run_until_idle();
  CHECK(world.said == Said{{3, ErrorCode::ok}});
  CHECK(world.reserved() == 2 * 32 * kMiB + 2 * 2 * kMiB);
}

TEST_CASE("tensor admission: a drop with a number is acknowledged, once on each connection") {
  constexpr std::uint64_t kBuffers = 2 * 32 * kMiB;  // of lanes; they stay
  World world(1024 * kMiB);
  world.declare(1, kFirst, 1, 32);
  world.loop.run_until_idle();
  world.admission.handle(DropTensors{2, kFirst, {TensorId{1}}, {}});
  CHECK(world.said.size() == 1);  // not before shards have dropped it
  world.loop.run_until_idle();
  CHECK(world.said == Said{{1, ErrorCode::ok}, {2, ErrorCode::ok}});
  CHECK(world.reserved() == kBuffers);
  world.admission.handle(DropTensors{3, kFirst, {TensorId{1}}, {}});
  world.admission.handle(DropTensors{4, JobRun{77}, {TensorId{1}}, {}});
  world.loop.run_until_idle();
  CHECK(world.said.size() == 4);
  // One that waits when the connection is lost is asked again.
  world.declare(5, kFirst, 1, 32);
  world.admission.handle(DropTensors{6, kFirst, {TensorId{1}}, {}});
  ++world.connection;
  world.admission.taken_up();
  world.admission.handle(DropTensors{6, kFirst, {TensorId{1}}, {}});
  world.loop.run_until_idle();
  CHECK(world.said.size() == 5);
  CHECK(world.said.back() == std::pair{std::uint64_t{6}, ErrorCode::ok});
  CHECK(world.reserved() == kBuffers);
}

TEST_CASE("tensor admission: of a job that ends meanwhile they are acknowledged, and nothing stays") {
  const std::uint64_t left = GENERATE(UINT64_MAX, 100 * kMiB);  // enough; as much as has to be looked for
  World world(1024 * kMiB, [left] { return MemoryBound{left, "the machine"}; });
  world.declare(1, kFirst, 1, 32);
  world.admission.handle(DropTensors{2, kFirst, {TensorId{1}}, {}});
  world.end(kFirst);
  world.loop.run_until_idle();
  CHECK(world.said == Said{{1, ErrorCode::ok}, {2, ErrorCode::ok}});
  CHECK(world.reserved() == 0);
  CHECK(world.told_reserved == 0);
}

TEST_CASE("tensor admission: a smaller receive buffer is reserved until the lane that has it is done") {
  constexpr JobRun kThird{3};
  constexpr std::uint64_t kLarger = 2 * (2 * 2 + 2 * 2) * kMiB;  // two slots and two buffers, of 2 MiB
  World world(2 * 2 * kMiB + kLarger + 2 * 2 * kMiB);
  world.open(kThird, 2);
  world.declare(1, kThird, 1, 1);
  world.loop.run_until_idle();
  CHECK(world.reserved() == 2 * (2 + 2) * kMiB);
  std::vector<std::byte> bytes(kMiB);
  PushPull header = shard_test::World::header(1000, 0);
  header.job_run = kThird;
  Message message = header;
  std::vector<std::shared_ptr<shard_test::Wire>> wires;
  std::byte* place = nullptr;
  for (const std::uint32_t rank : {0u, 1u}) {
    const auto& wire = wires.emplace_back(std::make_shared<shard_test::Wire>());
    world.shards.all()[0]->admit(testing::hello_of(kThird, rank), Welcome{},
                                 std::make_unique<shard_test::FakeConnection>(wire));
    place = wire->handler->on_payload(header, kMiB);
    REQUIRE(place != nullptr);
    std::memset(place, 0, kMiB);
    if (rank == 0) wire->handler->on_message(message, {place, kMiB});
  }
  world.declare(2, kThird, 2, 2);
  world.loop.run_until_idle();
  CHECK(world.reserved() == 2 * 2 * kMiB + kLarger + kMiB);
  CHECK(world.told_reserved == world.reserved());
  world.declare(3, kThird, 3, 1);
  world.loop.run_until_idle();
  CHECK(world.said == Said{{1, ErrorCode::ok}, {2, ErrorCode::ok}, {3, ErrorCode::out_of_memory}});
  SECTION("and has room for others then") {
    wires[1]->handler->on_message(message, {place, kMiB});
    world.loop.run_until_idle();
    CHECK(world.reserved() == 2 * 2 * kMiB + kLarger);
    CHECK(world.told_reserved == world.reserved());
    world.declare(4, kThird, 3, 1);
    world.loop.run_until_idle();
    CHECK(world.said.back() == std::pair{std::uint64_t{4}, ErrorCode::ok});
  }
  SECTION("or gone") {
    wires[1]->handler->on_closed(make_error(ErrorCode::peer_lost, "gone"));
    world.loop.run_until_idle();
    CHECK(world.reserved() == 2 * 2 * kMiB + kLarger);
  }
  SECTION("or its job has ended") {
    world.end(kThird);
    world.loop.run_until_idle();
    CHECK(world.reserved() == 0);
  }
}

TEST_CASE("tensor admission: of a job that ends and is opened again while shards give memory back") {
  std::function<void()> looked;
  World* here = nullptr;
  World world(1024 * kMiB, [&] {
    if (looked) here->loop.post(std::exchange(looked, nullptr));
    return here->left_of(100 * kMiB);
  });
  here = &world;
  world.declare(1, kFirst, 1, 16);
  world.admission.handle(DropTensors{0, kFirst, {TensorId{1}}, {}});
  world.loop.run_for(std::chrono::seconds(1));
  REQUIRE(world.idle() == 2 * 16 * kMiB);
  world.loop.run_for(std::chrono::seconds(1));
  // It fits only with what is idle, and shards are asked for that after the first look.
  bool once_more = false;
  looked = [&] {
    looked = [&] {
      world.end(kSecond);
      world.open(kSecond);
      once_more = true;
    };
  };
  world.declare(2, kSecond, 1, 11);
  world.loop.run_for(std::chrono::seconds(1));
  REQUIRE(once_more);
  world.declare(3, kSecond, 1, 1);  // the same partitions
  world.loop.run_until_idle();
  CHECK(world.said == Said{{1, ErrorCode::ok}, {2, ErrorCode::ok}, {3, ErrorCode::ok}});
  CHECK(world.reserved() == 2 * 16 * kMiB + 2 * 3 * kMiB);
}

TEST_CASE("tensor admission: what others that are being granted have taken is not looked for once more") {
  std::uint64_t machine = 1024 * kMiB;
  const World* here = nullptr;
  World world(1024 * kMiB, [&] { return here->left_of(machine); });
  here = &world;
  // Larger receive buffers replace those of 8 MiB, which are idle then.
  world.declare(1, kFirst, 1, 8);
  world.declare(2, kFirst, 2, 16);
  world.loop.run_for(std::chrono::seconds(1));
  REQUIRE(world.idle() == 2 * 8 * kMiB);
  // When all of the next two is promised, 14 MiB are neither promised nor needed by anybody. The idle ones
  // are more, so what the second one needs is only seen when shards have been asked.
  machine = world.reserved() + 2 * 2 * 64 * kMiB + 2 * 3 * kMiB + 14 * kMiB;
  world.declare(3, kFirst, 3, 1, 64, Mode::async);
  const auto lacking = [&] {
    std::uint64_t bytes = 0;
    for (const auto& shard : world.shards.all())
      bytes += shard->bytes_to_grant();
    return bytes;
  };
  REQUIRE(world.loop.run_until([&] { return lacking() > 0 && lacking() <= 2 * 64 * kMiB; },
                               world.loop.now() + std::chrono::seconds(1)));
  world.declare(4, kSecond, 1, 1);
  world.loop.run_until_idle();
  CHECK(world.said == Said{{1, ErrorCode::ok}, {2, ErrorCode::ok}, {4, ErrorCode::ok}, {3, ErrorCode::ok}});
  // One MiB of them is a receive buffer now, and one MiB of a new slab of 2 MiB is no slot.
  CHECK(world.idle() == 2 * (7 + 1) * kMiB);
}

}  // namespace
}  // namespace bps::tensor_admission_test

// A server whose lanes come over RDMA, on a device that exists in this process only.
#include "proto/transport/rdma/fake/on_loopback.h"
#include "proto/transport/rdma/rdma_transport.h"
#include "server/testing/server_harness.h"

namespace bps::server_test {
namespace {

using Catch::Matchers::Contains;

struct RdmaWorld : World {
  explicit RdmaWorld(std::uint32_t shards = 1) : World(shards) {
    options.rdma = &rdma;
    options.only = Entrance::rdma;
  }
  // They and the server go before the transport.
  ~RdmaWorld() {
    workers.clear();
    server.reset();
  }

  Peer& rdma_lane(JobRun run, std::uint32_t rank, std::uint32_t shard, Session session = Session{1}) {
    workers.push_back(std::make_unique<Peer>(rdma.connect(loop, server->endpoint(), 5s)));
    Peer& peer = *workers.back();
    HelloLane first = hello(run, rank, shard);
    first.session = session;
    peer.connection().send(first);
    until([&] { return peer.find<Welcome>() != nullptr; });
    return peer;
  }
  void round(std::uint64_t number, std::uint32_t shards, const std::vector<std::vector<float>>& values) {
    for (std::size_t rank = 0; rank < values.size(); ++rank) {
      for (std::uint32_t shard = 0; shard < shards; ++shard) {
        Peer& lane = *workers[rank * shards + shard];
        lane.messages.clear();
        push(lane, kRun, 10 + shard, values[rank], number);
      }
    }
    std::vector<float> sum(values[0].size());
    for (const auto& of_rank : values)
      std::transform(sum.begin(), sum.end(), of_rank.begin(), sum.begin(), std::plus<>());
    for (const auto& lane : workers) {
      until([&] { return lane->find<Aggregate>() != nullptr; });
      REQUIRE(lane->payload == sum);
    }
  }

  // As a server on a host with both: what is registered is shared memory, too.
  RdmaOptions shared_options() {
    RdmaOptions shared;
    shared.memory = [this](std::size_t bytes) { return shared_memory.allocate(bytes); };
    return shared;
  }

  const std::shared_ptr<FakeFabric> fabric = std::make_shared<FakeFabric>();
  RdmaTransport transport_over_fabric{fabric, shared_options()};
  OnLoopback rdma{transport_over_fabric};
};

}  // namespace

TEST_CASE(
    "over RDMA: sums are right, no payload registers anything, from the first on, few requests are "
    "signalled") {
  constexpr std::uint32_t kShards = 2, kRanks = 3, kRounds = 40;
  constexpr std::size_t kElements = 60'000;
  RdmaWorld world(kShards);
  world.serve();
  REQUIRE(world.open_job(kRun, kRanks).code == ErrorCode::ok);
  REQUIRE(world.declare(kRun, 1, kElements).code == ErrorCode::ok);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    for (std::uint32_t shard = 0; shard < kShards; ++shard)
      world.rdma_lane(kRun, rank, shard);
  }
  std::vector<std::vector<float>> values(kRanks, std::vector<float>(kElements));
  const auto fill = [&](std::uint64_t round) {
    for (std::size_t rank = 0; rank < values.size(); ++rank) {
      for (std::size_t i = 0; i < kElements; ++i)
        values[rank][i] = static_cast<float>((i + round) % 100 + rank);
    }
  };
  const RdmaCounters& counters = world.transport_over_fabric.counters();
  const std::uint64_t registrations = counters.registrations, reads = counters.reads;
  const std::uint64_t sends = counters.sends, signalled = counters.signalled_sends;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    fill(round);
    world.round(round, kShards, values);
  }
  CHECK(counters.registrations == registrations);
  CHECK(counters.reads - reads >= std::uint64_t{kRounds} * kRanks * kShards * 2);
  CHECK((counters.signalled_sends - signalled) * 16 <= counters.sends - sends + 16 * 2 * kRanks * kShards);
  CHECK(world.fabric->receivers_not_ready() == 0);
}

TEST_CASE("over RDMA: tensors of an asynchronous job are registered when they are declared, too") {
  RdmaWorld world;
  world.serve();
  REQUIRE(world.open_job(kRun, 1).code == ErrorCode::ok);
  DeclareSlices declare = World::slices(kRun, 1, 1, 60'000);
  declare.tensors[0].mode = Mode::async;
  REQUIRE(world.ask(declare).code == ErrorCode::ok);
  Peer& lane = world.rdma_lane(kRun, 0, 0);
  const RdmaCounters& counters = world.transport_over_fabric.counters();
  const std::uint64_t registrations = counters.registrations, reads = counters.reads;
  PushPull broadcast;
  broadcast.job_run = kRun;
  broadcast.count = kMaxTensorElements;  // all
  broadcast.partition = PartitionId{10};
  broadcast.call = RoundCall::broadcast(Rank{0});
  const std::vector<float> values(60'000, 2);
  lane.connection().send(broadcast, std::as_bytes(std::span(values)), 1);
  world.until([&] { return lane.find<Aggregate>() != nullptr; });
  CHECK(counters.registrations == registrations);
  CHECK(counters.reads > reads);
}

TEST_CASE("over RDMA: who is refused while it reads an answer hears why, or is closed in time") {
  RdmaWorld world;
  world.serve();
  REQUIRE(world.open_job(kRun, 2).code == ErrorCode::ok);
  REQUIRE(world.declare(kRun, 1, 60'000).code == ErrorCode::ok);
  Peer& other = world.rdma_lane(kRun, 0, 0);
  Peer& bad = world.rdma_lane(kRun, 1, 0);
  const std::vector<float> values(60'000, 2);
  PushPull broadcast;
  broadcast.job_run = kRun;
  broadcast.count = kMaxTensorElements;  // all
  broadcast.partition = PartitionId{10};
  broadcast.call = RoundCall::broadcast(Rank{0});
  other.connection().send(broadcast, std::as_bytes(std::span(values)), 1);
  const RdmaCounters& counters = world.transport_over_fabric.counters();
  world.until([&] { return counters.reads == 1; });
  world.fabric->hold_reads(UINT32_MAX);
  bad.connection().send(broadcast);
  world.until([&] { return counters.reads == 2; });  // of its answer, which is lent
  const TimePoint began = world.loop.now();
  bad.connection().send(Heartbeat{1});
  const ExpectLog said("broke a rule: Heartbeat has no place on a lane");
  world.until([&] { return said.seen() == 1; });
  CHECK_FALSE(bad.closed);
  SECTION("it hears why, behind the answer") {
    world.fabric->finish_reads();
    world.until([&] { return bad.find<Refused>() != nullptr || bad.closed; });
    // Unless the machine has stood still meanwhile.
    if (bad.find<Refused>() != nullptr || world.loop.now() - began < ServerLane::kLinger) {
      CHECK(bad.payload == values);
      REQUIRE(bad.find<Refused>() != nullptr);
      CHECK_THAT(bad.find<Refused>()->message, Contains("no place on a lane"));
    }
    bad.close();
  }
  SECTION("it is slow") {
    world.until([&] { return bad.closed.has_value(); });
    CHECK(world.loop.now() - began >= ServerLane::kLinger);
    world.fabric->finish_reads();
  }
  // It had the answer, or asks for no other: the round is over for its root, and the next can begin.
  Peer& again = world.rdma_lane(kRun, 1, 0, Session{2});
  again.connection().send(Stored{kRun, PartitionId{10}, Round{0}, {}, {}});
  world.until([&] { return other.find<Aggregate>() != nullptr; });
  other.messages.clear();
  for (Peer* const peer : {&other, &again})
    world.push(*peer, kRun, 10, values, 1);
  world.until([&] { return other.find<Aggregate>() != nullptr && again.find<Aggregate>() != nullptr; });
}

TEST_CASE("over RDMA: a device that goes away ends its lanes, and the server goes on") {
  RdmaWorld world;
  world.serve();
  REQUIRE(world.open_job(kRun, 1).code == ErrorCode::ok);
  REQUIRE(world.declare(kRun, 1, 100).code == ErrorCode::ok);
  Peer& lane = world.rdma_lane(kRun, 0, 0);
  const ExpectLog said("the RDMA device was removed");
  world.fabric->remove_device();
  world.until([&] { return lane.closed.has_value(); });
  CHECK_THAT(lane.closed->message, Contains("was removed"));
  CHECK(world.open_job(JobRun{43}, 1).code == ErrorCode::ok);
}

TEST_CASE("over RDMA: of those that prove nothing only so many have memory pinned") {
  RdmaWorld world;
  world.serve();
  REQUIRE(world.open_job(kRun, 1).code == ErrorCode::ok);
  world.rdma_lane(kRun, 0, 0);
  const ExpectLog said("too many connections over RDMA without a handshake");
  const auto strangers = LaneDoor::kMaxGreetingRdma + 3;
  std::vector<std::unique_ptr<Peer>> peers;
  for (std::size_t i = 0; i < strangers; ++i)
    peers.push_back(std::make_unique<Peer>(world.rdma.connect(world.loop, world.server->endpoint(), 5s)));
  const auto gone = [&] {
    return std::count_if(peers.begin(), peers.end(),
                         [](const auto& peer) { return peer->closed.has_value(); });
  };
  world.until([&] { return gone() == 3; });
  CHECK(peers[0]->closed);
  CHECK_FALSE(peers[3]->closed);
  CHECK_FALSE(world.workers[0]->closed);  // who has proved itself stays
  // Nor for long: timers run in the order of their deadlines, however late.
  const ExpectLog late("no handshake within 5s");
  std::uint64_t turned_away = 0;
  world.loop.after(LaneDoor::kHelloTimeout, [&] { turned_away = world.server->rejected_connections(); });
  world.until([&] { return turned_away > 0 && gone() == static_cast<std::ptrdiff_t>(strangers); });
  CHECK(turned_away == strangers);
  world.until([&] { return world.fabric->queue_pairs() == 2; });  // the worker's, and the server's end of it
  CHECK_FALSE(world.workers[0]->closed);
}

TEST_CASE("over RDMA: a server for RDMA only tells workers that come over TCP so") {
  RdmaWorld world;
  world.start_and_hear_hello();
  CHECK(world.scheduler->find<HelloServer>()->rdma);
  world.serve(world.welcome());
  REQUIRE(world.open_job(kRun, 1).code == ErrorCode::ok);
  const Error refused = world.refusal(world.hello(kRun, 0, 0));
  CHECK(refused.code == ErrorCode::configuration);
  CHECK(refused.message == "this server, on host here, takes lanes over RDMA only");
  CHECK_THAT(refused.advice, Contains("BPS_TRANSPORT=rdma"));
  world.rdma_lane(kRun, 0, 0);
}

TEST_CASE("over RDMA: the scheduler is told that it is offered, and by whom it is not") {
  const auto offers = [](bool has_device) {
    RdmaWorld world;
    world.options.only.reset();
    world.options.rdma_if_possible = true;
    if (!has_device) world.fabric->remove_device();
    world.start_and_hear_hello();
    return world.scheduler->find<HelloServer>()->rdma;
  };
  CHECK(offers(true));
  CHECK_FALSE(offers(false));
  World without;
  without.start_and_hear_hello();
  CHECK_FALSE(without.scheduler->find<HelloServer>()->rdma);
}

TEST_CASE("over RDMA: an address without a device is refused at the start") {
  RdmaWorld world;
  world.options.rdma = &world.transport_over_fabric;  // which has 10.78.0.1 only
  const Status status = world.start();
  REQUIRE_FALSE(status.ok());
  CHECK_THAT(status.error().message,
             Contains("for RDMA") && Contains("no RDMA device of this host has this address"));
}

// What `auto` offers on a host with both.
struct BothWorld : RdmaWorld {
  BothWorld() {
    options.shared_memory = &shared_memory;
    options.only.reset();
    options.rdma_if_possible = true;
  }
  // The worker of rank 0 is elsewhere, that of rank 1 here.
  void open(std::size_t elements, bool pins = true) {
    serve();
    REQUIRE(open_job(kRun, 2).code == ErrorCode::ok);
    fabric->fail_registrations(pins ? 0 : 1);
    REQUIRE(declare(kRun, 1, elements).code == ErrorCode::ok);
    fabric->fail_registrations(0);
    rdma_lane(kRun, 0, 0);
    lane(kRun, 1, 0, /*local=*/true);
  }
};

TEST_CASE("over RDMA and through shared memory: both read an aggregate where it lies") {
  // More than a slab has room for: what is in memory of no transport goes in SENDs.
  constexpr std::size_t kElements = 400'000;
  BothWorld world;
  world.open(kElements);
  const RdmaCounters& counters = world.transport_over_fabric.counters();
  const std::vector<std::vector<float>> values(2, std::vector<float>(kElements, 3));
  world.round(0, 1, values);
  CHECK(counters.read_bytes == kElements * sizeof(float));
  CHECK(world.workers[1]->is_copy == false);
}

TEST_CASE(
    "over RDMA and through shared memory: where nothing can be pinned, workers of this host get no copy") {
  BothWorld world;
  const ExpectLog said("cannot pin 4.0 MiB; aggregates are copied once more for lanes that need this");
  world.open(60'000, /*pins=*/false);
  const std::vector<std::vector<float>> values(2, std::vector<float>(60'000, 3));
  for (std::uint64_t round = 0; round < 3; ++round)
    world.round(round, 1, values);
  CHECK(said.seen() == 1);
  CHECK(world.workers[1]->is_copy == false);
}

TEST_CASE("over RDMA: aggregates go into ordinary memory where none can be pinned, and that is said once") {
  RdmaWorld world;
  world.serve();
  REQUIRE(world.open_job(kRun, 1).code == ErrorCode::ok);
  world.fabric->fail_registrations(1);
  const ExpectLog said("cannot pin 4.0 MiB; aggregates go into ordinary memory");
  REQUIRE(world.declare(kRun, 1, 60'000).code == ErrorCode::ok);
  world.fabric->fail_registrations(0);
  world.rdma_lane(kRun, 0, 0);
  const std::vector<std::vector<float>> values(1, std::vector<float>(60'000, 3));
  for (std::uint64_t round = 0; round < 3; ++round)
    world.round(round, 1, values);
  CHECK(said.seen() == 1);
}

}  // namespace bps::server_test

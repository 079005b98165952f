// A whole server on real sockets: what it does for a scheduler and workers that are played by the test.
#include "proto/base/descriptor_limit.h"
#include "proto/base/testing/not_run.h"
#include "server/testing/server_harness.h"

namespace bps::server_test {
namespace {

TEST_CASE("a server registers, opens a job, sums on every shard and frees the job") {
  World world;
  REQUIRE(world.start().ok());
  world.until([&] { return world.scheduler && world.scheduler->find<HelloServer>(); });
  const HelloServer hello = *world.scheduler->find<HelloServer>();
  CHECK(hello.data == world.server->endpoint());
  CHECK(hello.shards == 2);
  CHECK(hello.host == "here");
  world.scheduler->connection().send(Welcome{world.term, world.incarnation, ServerId{5}, JobRun{}});
  world.until([&] { return world.registered; });

  CHECK(world.open_job(kRun, 2).code == ErrorCode::ok);
  CHECK(world.declare(kRun, 1, 3).code == ErrorCode::ok);
  CHECK(world.server->ledger().reserved() > 0);
  for (std::uint32_t shard = 0; shard < 2; ++shard) {
    Peer& a = world.lane(kRun, 0, shard);
    Peer& b = world.lane(kRun, 1, shard);
    const std::vector<float> one{1, 2, 3}, two{10, 20, 30};
    World::push(b, kRun, 10 + shard, two);
    World::push(a, kRun, 10 + shard, one);
    world.until([&] { return a.find<Aggregate>() && b.find<Aggregate>(); });
    CHECK(a.payload == std::vector<float>{11, 22, 33});
    CHECK(b.payload == std::vector<float>{11, 22, 33});
  }
  const TimePoint begin = world.loop.now();
  world.scheduler->connection().send(JobEnded{kRun, make_error(ErrorCode::peer_lost, "rank 1 is dead")});
  for (const auto& worker : world.workers) {
    world.until([&] { return worker->find<Refused>() != nullptr; });
    CHECK(worker->find<Refused>()->message == "rank 1 is dead");
    if (world.loop.now() - begin < ServerLane::kFarewell) {
      CHECK_FALSE(worker->closed);  // it closes by itself, and the memory is its own until then
      CHECK(world.server->ledger().reserved() > 0);
    }
    worker->close();
  }
  world.until([&] { return world.server->ledger().reserved() == 0; });
  CHECK(world.refusal(world.hello(kRun, 0, 0)).code == ErrorCode::peer_lost);
}

TEST_CASE("workers come through shared memory and over the network, and get one sum") {
  World world(1);
  world.options.shared_memory = &world.shared_memory;
  world.serve();
  constexpr std::size_t kElements = 50'000;
  REQUIRE(world.open_job(kRun, 3).code == ErrorCode::ok);
  REQUIRE(world.declare(kRun, 1, kElements).code == ErrorCode::ok);
  Peer* const lanes[] = {&world.lane(kRun, 0, 0, true), &world.lane(kRun, 1, 0, false),
                         &world.lane(kRun, 2, 0, true)};
  auto region = world.shared_memory.allocate(kElements * sizeof(float));
  REQUIRE(region.ok());
  const std::span<float> shared(reinterpret_cast<float*>((*region)->bytes().data()), kElements);
  const std::vector<float> one(kElements, 1), two(kElements, 2);
  for (std::uint64_t round = 0; round < 20; ++round) {
    const auto third = static_cast<float>(round);
    std::fill(shared.begin(), shared.end(), third);
    for (Peer* lane : lanes) {
      lane->messages.clear();
    }
    // Rank 0's is copied into the slab of its connection, rank 2's is read where it lies.
    const auto push = [&](std::uint32_t rank) {
      if (rank == 0) World::push(*lanes[0], kRun, 10, one, round);
      if (rank == 1) World::push(*lanes[1], kRun, 10, two, round);
      if (rank == 2) World::push(*lanes[2], kRun, 10, shared, round, region->get());
    };
    for (std::uint32_t i = 0; i < 3; ++i) {
      push(static_cast<std::uint32_t>(round + i * (1 + round % 2)) % 3);
    }
    for (Peer* lane : lanes) {
      world.until([&] { return lane->find<Aggregate>() != nullptr; });
      REQUIRE(lane->payload == std::vector<float>(kElements, 3 + third));
    }
  }
}

TEST_CASE("512 lanes on one server, half of them through shared memory") {
  constexpr std::uint32_t kLanes = 512;
  World world(1);
  if (const auto limit = raise_descriptor_limit(); limit < 4 * kLanes) {
    return testing::not_run("512 lanes", "this process may open " + std::to_string(limit) + " descriptors");
  }
  world.options.shared_memory = &world.shared_memory;
  world.serve();
  REQUIRE(world.open_job(kRun, kLanes).code == ErrorCode::ok);
  REQUIRE(world.declare(kRun, 1, 3000).code == ErrorCode::ok);
  std::vector<Peer*> lanes;
  for (std::uint32_t rank = 0; rank < kLanes; ++rank) {
    lanes.push_back(&world.lane(kRun, rank, 0, rank % 2 == 0));
  }
  const std::vector<float> one(3000, 1);
  for (std::uint64_t round = 0; round < 2; ++round) {
    for (std::uint32_t rank = 0; rank < kLanes; ++rank) {
      lanes[rank]->messages.clear();
      World::push(*lanes[rank], kRun, 10, one, round);
    }
    for (Peer* lane : lanes) {
      world.until([&] { return lane->find<Aggregate>() != nullptr; });
      REQUIRE(lane->payload == std::vector<float>(3000, kLanes));
    }
  }
}

TEST_CASE("a server for shared memory only tells workers that come over the network so") {
  World world(1);
  world.options.shared_memory = &world.shared_memory;
  world.options.only = Entrance::shared_memory;
  world.serve();
  REQUIRE(world.open_job(kRun, 1).code == ErrorCode::ok);
  const Error refused = world.refusal(world.hello(kRun, 0, 0));
  CHECK(refused.code == ErrorCode::configuration);
  CHECK(refused.message == "this server, on host here, takes lanes through shared memory only");
  world.lane(kRun, 0, 0, true);
}

TEST_CASE("two jobs at once do not see each other") {
  World world(1);
  world.serve();
  const JobRun runs[] = {JobRun{1}, JobRun{2}};
  for (const JobRun run : runs) {
    CHECK(world.open_job(run, 1).code == ErrorCode::ok);
    CHECK(world.declare(run, 1, 2).code == ErrorCode::ok);
  }
  Peer& a = world.lane(runs[0], 0, 0);
  Peer& b = world.lane(runs[1], 0, 0);
  const std::vector<float> one{1, 1}, two{2, 2};
  World::push(a, runs[0], 10, one);
  World::push(b, runs[1], 10, two);
  world.until([&] { return a.find<Aggregate>() && b.find<Aggregate>(); });
  CHECK(a.payload == one);
  CHECK(b.payload == two);
  world.scheduler->connection().send(JobEnded{runs[0], {}});
  world.until([&] { return a.closed.has_value(); });
  CHECK(a.find<Refused>() == nullptr);
  CHECK_FALSE(b.closed);
}

TEST_CASE(
    "a declaration beyond --memory-max is refused with the amounts; one that waits for freed memory is not") {
  World world(1);
  world.serve();
  REQUIRE(world.open_job(JobRun{1}, 1).code == ErrorCode::ok);
  REQUIRE(world.open_job(JobRun{2}, 1).code == ErrorCode::ok);
  REQUIRE(world.declare(JobRun{1}, 1, 4 * kMiB).code == ErrorCode::ok);
  const Error refused = world.declare(JobRun{2}, 1, 4 * kMiB);
  CHECK(refused.code == ErrorCode::out_of_memory);
  CHECK(refused.message ==
        "1 tensors of job 'job' from 'weights' on need 48.0 MiB; 48.0 MiB of 48.0 MiB are reserved");
  // A quarter of it is the reorder budget.
  CHECK(refused.advice == "give this server --memory-max 128MiB, or start more servers");
  // Both at once: the declaration must not be judged before the other job's memory is free.
  world.scheduler->connection().send(JobEnded{JobRun{1}, {}});
  CHECK(world.declare(JobRun{2}, 1, 4 * kMiB).code == ErrorCode::ok);
}

TEST_CASE("who is not meant is refused at the door, and counted") {
  World world;
  world.serve();
  REQUIRE(world.open_job(kRun, 1).code == ErrorCode::ok);
  const ExpectLog expected("opened no lane");
  HelloLane hello = world.hello(kRun, 0, 0);
  SECTION("another server's lane") { hello.server = ServerId{6}; }
  SECTION("another life") { hello.server_incarnation = Incarnation{8}; }
  SECTION("no such shard") { hello.shard = 2; }
  CHECK_FALSE(world.refusal(hello).message.empty());
  CHECK(world.server->rejected_connections() == 1);
  CHECK(world.refusal(HelloWorker{{}, {}, "j", {}, Rank{0}, 1}).advice ==
        "this is a bps-server; the scheduler has another port");
  CHECK(world.refusal(Credit{}).code == ErrorCode::protocol);
  CHECK(world.server->rejected_connections() == 3);
  CHECK(world.refusal(HelloLocal{kRun, Rank{0}}).code == ErrorCode::protocol);
  CHECK(world.server->rejected_connections() == 4);
  world.lane(kRun, 0, 1);
}

TEST_CASE("a server says which rounds are open, over all shards") {
  World world;
  world.serve();
  REQUIRE(world.open_job(kRun, 2).code == ErrorCode::ok);
  REQUIRE(world.declare(kRun, 3, 4).code == ErrorCode::ok);
  const std::vector<float> values{1, 2, 3, 4};
  for (std::uint32_t shard = 0; shard < 2; ++shard)
    world.push(world.lane(kRun, 1, shard), kRun, 30 + shard, values);
  const auto ask = [&](const AskOpenRounds& query) {
    world.scheduler->messages.clear();
    world.scheduler->connection().send(query);
    world.until([&] { return world.scheduler->find<OpenRounds>() != nullptr; });
    return *world.scheduler->find<OpenRounds>();
  };
  OpenRounds open;
  world.until([&] {
    open = ask({8, kRun, {}, 0});
    return !open.rounds.empty() && open.rounds[0].partitions == 2;
  });
  CHECK(open.request == 8);
  REQUIRE(open.rounds.size() == 1);
  CHECK(open.rounds[0].tensor == TensorId{3});
  CHECK(open.rounds[0].missing == std::vector{Rank{0}});
  CHECK(ask({9, kRun, TensorId{3}, 0}).rounds.size() == 1);
  CHECK(ask({9, kRun, TensorId{4}, 0}).rounds.empty());
  CHECK(ask({9, kRun, {}, 1'000'000}).rounds.empty());
  CHECK(ask({9, JobRun{1}, {}, 0}).rounds.empty());
}

TEST_CASE("a server logs rounds that are open for too long, once") {
  World world;
  std::vector<std::string> warnings;
  world.log = Logger("server", LogTarget::to_callback(
                                   [&](LogLevel level, std::string_view, std::string_view line) {
                                     if (level == LogLevel::warn) warnings.emplace_back(line);
                                   },
                                   LogLevel::debug));
  world.options.stall_warn = 150ms;
  world.serve();
  REQUIRE(world.open_job(kRun, 2).code == ErrorCode::ok);
  REQUIRE(world.declare(kRun, 3, 4).code == ErrorCode::ok);
  const ExpectLog expected("weights");
  const std::vector<float> values{1, 2, 3, 4};
  Peer& lane = world.lane(kRun, 1, 0);
  world.push(lane, kRun, 30, values);
  world.until([&] { return !warnings.empty(); });
  CHECK_THAT(warnings[0], Catch::Contains("job 'job': round 0 of weights waits for"));
  CHECK_THAT(warnings[0], Catch::Contains("1 of 2 pushed, missing rank 0"));
  // The next round, after several looks.
  world.push(world.lane(kRun, 0, 0), kRun, 30, values);
  world.until([&] { return lane.find<Aggregate>() != nullptr; });
  world.push(lane, kRun, 30, values, 1);
  world.until([&] { return warnings.size() > 1; });
  CHECK_THAT(warnings[1], Catch::Contains("round 1 of weights"));
}

TEST_CASE("a server drains when the scheduler says so") {
  World world;
  world.serve();
  world.scheduler->connection().send(Drain{1, ServerId{5}});
  world.until([&] { return world.scheduler->find<Leave>() != nullptr; });
  world.scheduler->connection().send(Drain{2, ServerId{5}});
  world.scheduler->connection().send(Left{});
  world.until([&] { return world.stopped.has_value(); });
  CHECK(world.stopped->code == ErrorCode::ok);
}

TEST_CASE("a server drains: it leaves, waits for its jobs, and stops without error") {
  World world;
  world.serve();
  REQUIRE(world.open_job(kRun, 1).code == ErrorCode::ok);
  world.server->drain();
  world.until([&] { return world.scheduler->find<Leave>() != nullptr; });
  CHECK_FALSE(world.stopped);
  world.lane(kRun, 0, 0);
  world.scheduler->connection().send(Left{});
  world.until([&] { return world.stopped.has_value(); });
  CHECK(world.stopped->code == ErrorCode::ok);
}

TEST_CASE("a job's epoch is new on every shard when it is acknowledged, and never old again") {
  World world;
  world.serve();
  REQUIRE(world.open_job(kRun, 1).code == ErrorCode::ok);
  REQUIRE(world.declare(kRun, 1, 2).code == ErrorCode::ok);
  HelloLane newer = world.hello(kRun, 0, 1);
  newer.epoch = Epoch{3};
  CHECK(world.refusal(newer).code == ErrorCode::peer_lost);
  DeclareSlices epoch;
  epoch.job_run = kRun;
  epoch.epoch = Epoch{3};
  CHECK(world.ask(epoch).code == ErrorCode::ok);
  Peer& late = world.lane(kRun, 0, 0);  // has not heard of it
  Peer& lane = world.connect(newer);
  world.until([&] { return lane.find<Welcome>() != nullptr; });
  CHECK_FALSE(late.closed);
  CHECK(world.declare(kRun, 2, 2).code == ErrorCode::protocol);

  DeclareSlices moved = World::slices(kRun, 3, 2, 2);
  moved.epoch = Epoch{4};
  moved.moved = true;
  CHECK(world.ask(moved).code == ErrorCode::ok);
  lane.connection().send(Resume{kRun, Epoch{4}, {}, {{PartitionId{31}, Round{8}}}});
  world.until([&] { return lane.find<Resumed>() != nullptr; });
  CHECK(lane.find<Resumed>()->partition == PartitionId{31});
  CHECK(lane.find<Resumed>()->round == Round{8});
}

TEST_CASE("stop tells the workers, and ends when they have closed their lanes, or after a while") {
  World world;
  world.serve();
  REQUIRE(world.open_job(kRun, 1).code == ErrorCode::ok);
  Peer& lane = world.lane(kRun, 0, 0);
  world.server->drain();
  const TimePoint begin = world.loop.now();
  world.server->stop();
  world.until([&] { return lane.find<Refused>() != nullptr; });
  CHECK(lane.find<Refused>()->message == "the server stops");
  SECTION("they have") {
    if (world.loop.now() - begin < ServerLane::kFarewell) CHECK_FALSE(world.stopped);
    lane.close();
    world.until([&] { return world.stopped.has_value(); });
  }
  SECTION("they have not") {
    world.until([&] { return world.stopped.has_value() && lane.closed.has_value(); });
    CHECK(world.loop.now() - begin >= ServerLane::kFarewell);
  }
  CHECK(world.stopped->code == ErrorCode::ok);
}

TEST_CASE("a server that never finds its scheduler stops with the reason") {
  World world;
  world.listener.reset();
  world.options.start_timeout = 100ms;
  REQUIRE(world.start().ok());
  world.until([&] { return world.stopped.has_value(); });
  CHECK(world.stopped->code == ErrorCode::unreachable);
  CHECK(world.stopped->message.find(to_string(world.options.scheduler)) != std::string::npos);
}

TEST_CASE("heartbeats keep the server alive") {
  World world;
  world.options.heartbeat_interval = 20ms;
  world.options.heartbeat_timeout = 400ms;
  world.serve();
  // Both are on one loop, so that none is late where the other is not. More than two times the timeout.
  std::size_t sent = 0;
  const std::function<void()> beat = [&] {
    world.scheduler->connection().send(Heartbeat{});
    if (++sent < 20) world.loop.after(50ms, beat);
  };
  beat();
  world.until([&] { return sent == 20 && world.scheduler->frames > 20; });
  CHECK_FALSE(world.stopped);
}

TEST_CASE("a server that starts before its scheduler finds it when it comes") {
  World world;
  const Endpoint endpoint = world.listener->endpoint();
  world.listener.reset();
  REQUIRE(world.start().ok());
  world.until([&, end = world.loop.now() + 300ms] { return world.loop.now() > end; });
  auto listening = world.transport.listen(world.loop, endpoint, [&](std::unique_ptr<Connection> connection) {
    world.scheduler = std::make_unique<Peer>(std::move(connection));
  });
  REQUIRE(listening.ok());
  world.listener = std::move(listening).value();
  world.until([&] { return world.scheduler && world.scheduler->find<HelloServer>(); });
}

TEST_CASE("what the scheduler refuses or says out of place ends the server with that") {
  World world;
  SECTION("refused") {
    REQUIRE(world.start().ok());
    world.until([&] { return world.scheduler && world.scheduler->find<HelloServer>(); });
    world.scheduler->connection().send(Refused{ErrorCode::unauthorised, "no", "use the key"});
    world.until([&] { return world.stopped.has_value(); });
    CHECK(world.stopped->code == ErrorCode::unauthorised);
    CHECK(world.stopped->advice == "use the key");
  }
  SECTION("out of place") {
    world.serve();
    world.scheduler->connection().send(Credit{});
    world.until([&] { return world.stopped.has_value(); });
    CHECK(world.stopped->code == ErrorCode::protocol);
  }
}

TEST_CASE("a server ends well with its cluster, and its scheduler sees when its lanes have ended") {
  World world;
  world.serve();
  CHECK(world.open_job(kRun, 1).code == ErrorCode::ok);
  const Peer& worker = world.lane(kRun, 0, 0);  // it does not close: it is given up
  world.scheduler->connection().send(Refused{ErrorCode::closed, "bpsctl shutdown", ""});
  bool closed_before = false;
  world.until([&] {
    closed_before = closed_before || (world.scheduler->closed && !world.stopped);
    return world.stopped.has_value();
  });
  CHECK(world.stopped->code == ErrorCode::ok);
  CHECK_FALSE(closed_before);
  CHECK(worker.find<Refused>() != nullptr);
  world.until([&] { return world.scheduler->closed.has_value(); });
}

TEST_CASE("addresses that nobody should or could use are refused at the start") {
  World world;
  SECTION("open to the world") {
    world.options.listen.host = "0.0.0.0";
    CHECK(world.start().error().code == ErrorCode::configuration);
  }
  SECTION("open to those who have the key, but nobody knows where") {
    world.options.listen.host = "0.0.0.0";
    world.options.key = Key::fresh().value();
    CHECK(world.start().error().advice.find("--advertise") != std::string::npos);
  }
  SECTION("open on purpose, but nobody knows where") {
    world.options.listen.host = "0.0.0.0";
    world.options.insecure = true;
    CHECK(world.start().error().advice.find("--advertise") != std::string::npos);
  }
  SECTION("advertised") {
    world.options.listen.host = "0.0.0.0";
    world.options.insecure = true;
    world.options.advertise = "127.0.0.1";
    CHECK(world.start().ok());
    CHECK(world.server->endpoint().host == "127.0.0.1");
    CHECK(world.server->endpoint().port != 0);
  }
  SECTION("taken") {
    world.options.listen = world.listener->endpoint();
    CHECK(world.start().error().code == ErrorCode::os);
  }
}

}  // namespace
}  // namespace bps::server_test

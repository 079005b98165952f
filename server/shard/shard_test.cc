#include "server/testing/shard_harness.h"

namespace bps::shard_test {
namespace {

TEST_CASE("two lanes push, both get the sum; taken counts payload bytes") {
  World world(2);
  world.declare(1, 3);
  const auto a = world.open(0);
  const auto b = world.open(1);
  CHECK(all<Welcome>(*a).size() == 1);
  world.push(*b, 1, 0, {1, 2, 3});
  CHECK(all<Aggregate>(*b).empty());
  world.push(*a, 1, 0, {10, 20, 30});
  REQUIRE(all<Aggregate>(*a).size() == 1);
  REQUIRE(all<Aggregate>(*b).size() == 1);
  CHECK(last_payload(*a) == std::vector<float>{11, 22, 33});
  CHECK(last_payload(*b) == std::vector<float>{11, 22, 33});
  CHECK(all<Aggregate>(*a)[0].taken == 12);
  CHECK(all<Aggregate>(*a)[0].weight == 2);
}

TEST_CASE("credit is reported when enough is unreported and nothing else carries it") {
  World world(2);
  world.declare(1, 4);
  world.declare(2, 4);
  const auto a = world.open(0, 1, 20);
  world.push(*a, 1, 0, {1, 1, 1, 1});
  CHECK(all<Credit>(*a).empty());
  world.push(*a, 2, 0, {1, 1, 1, 1});
  REQUIRE(all<Credit>(*a).size() == 1);
  CHECK(all<Credit>(*a)[0].taken == 32);
}

TEST_CASE("urgent answers overtake those that wait, as far as the connection has not got them") {
  World world(1);
  const auto a = world.open(0);
  const std::vector<float> large(ServerLane::kSendAheadBytes / sizeof(float), 1);
  world.declare(1, large.size(), 0);
  world.declare(2, large.size(), 0);
  world.declare(3, large.size(), 5);
  a->hold = true;
  for (std::uint32_t id : {2u, 1u, 3u}) {
    world.push(*a, id, 0, large);
  }
  REQUIRE(all<Aggregate>(*a).size() == 1);  // the others wait in the lane
  for (int i = 0; i < 2; ++i) {
    a->queued = 0;
    a->handler->on_writable();
  }
  const auto answers = all<Aggregate>(*a);
  REQUIRE(answers.size() == 3);
  CHECK(answers[0].partition == PartitionId{2});
  CHECK(answers[1].partition == PartitionId{3});
  CHECK(answers[2].partition == PartitionId{1});
}

TEST_CASE("what finds no room is refused with NotReady and asked for with ClearToSend") {
  World world(2, 0);
  world.declare(1, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  world.push(*b, 1, 0, {1, 1});
  REQUIRE(all<NotReady>(*b).size() == 1);
  CHECK(all<NotReady>(*b)[0].taken == 8);
  world.push(*a, 1, 0, {2, 2});
  REQUIRE(all<ClearToSend>(*b).size() == 1);
  world.push(*b, 1, 0, {1, 1});
  CHECK(last_payload(*b) == std::vector<float>{3, 3});
  CHECK(all<Aggregate>(*b)[0].taken == 16);
}

TEST_CASE("a lane is told its share of the reorder budget; a request to send is cleared without NotReady") {
  World world(2, 64);
  world.declare(1, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  CHECK(a->eager_limit == 16);
  CHECK(b->eager_limit == 16);
  PushPull header = world.header(1, 0);
  header.rendezvous = true;
  Message message = header;
  b->handler->on_message(message, {});
  world.push(*a, 1, 0, {2, 2});
  CHECK(all<NotReady>(*b).empty());
  REQUIRE(all<ClearToSend>(*b).size() == 1);
  CHECK(all<ClearToSend>(*b)[0].taken == 0);
  world.push(*b, 1, 0, {1, 1});
  CHECK(last_payload(*b) == std::vector<float>{3, 3});
}

TEST_CASE("a newer session closes the older one and drops its half received contribution") {
  World world(2);
  world.declare(1, 2);
  const auto old = world.open(0, 1);
  const auto b = world.open(1);
  REQUIRE(world.begin(*old, 1, 0, 2) != nullptr);
  const auto fresh = world.open(0, 2);
  CHECK(old->closed);
  CHECK(all<Welcome>(*fresh).size() == 1);
  world.push(*b, 1, 0, {1, 1});
  world.push(*fresh, 1, 0, {2, 2});
  CHECK(last_payload(*fresh) == std::vector<float>{3, 3});
}

TEST_CASE("an answer that was lost with its lane is given again") {
  World world(2);
  world.declare(1, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  b->hold = true;
  world.push(*a, 1, 0, {1, 1});
  world.push(*b, 1, 0, {2, 2});
  b->handler->on_closed(make_error(ErrorCode::peer_lost, "cut"));
  const auto again = world.open(1, 2);
  world.push(*a, 1, 1, {10, 10});
  world.push(*again, 1, 0, {2, 2});
  CHECK(last_payload(*again) == std::vector<float>{3, 3});
  world.push(*again, 1, 1, {20, 20});
  CHECK(last_payload(*again) == std::vector<float>{30, 30});
}

TEST_CASE("hellos that do not fit are refused") {
  World world(1);
  const auto a = world.open(0, 5);
  SECTION("an old session") {
    const auto old = world.open(0, 5);
    CHECK(old->closed);
    CHECK(all<Refused>(*old).at(0).message == "session 5 is not newer than 5");
  }
  SECTION("no member") { CHECK(all<Refused>(*world.open(3)).size() == 1); }
  SECTION("another life, an unknown run, an old epoch") {
    HelloLane hello = testing::hello_of(kRun, 0, Session{9});
    SECTION("life") { hello.incarnation = Incarnation{1}; }
    SECTION("run") { hello.job_run = JobRun{1}; }
    SECTION("epoch") { hello.epoch = Epoch{4}; }
    auto wire = std::make_shared<Wire>();
    world.shard->admit(hello, Welcome{}, std::make_unique<FakeConnection>(wire));
    REQUIRE(all<Refused>(*wire).size() == 1);
    CHECK(all<Refused>(*wire)[0].code == ErrorCode::peer_lost);
    CHECK(wire->closed);
  }
  CHECK_FALSE(a->closed);
}

TEST_CASE("a lane that breaks a rule is refused and closed; the others go on") {
  World world(2);
  world.declare(1, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  {
    const ExpectLog expected("broke a rule");
    SECTION("a partition that is not here") { world.push(*a, 9, 0, {1, 1}); }
    SECTION("a message that has no place") {
      Message message = Heartbeat{};
      a->handler->on_message(message, {});
    }
    SECTION("a payload that belongs to nothing") {
      CHECK(a->handler->on_payload(Message(Credit{}), 100) == nullptr);
    }
    SECTION("another run") {
      PushPull header = World::header(1, 0);
      header.job_run = JobRun{1};
      CHECK(a->handler->on_payload(header, 8) == nullptr);
    }
  }
  CHECK(a->closed);
  REQUIRE(all<Refused>(*a).size() == 1);
  CHECK(all<Refused>(*a)[0].code == ErrorCode::protocol);
  const auto again = world.open(0, 2);
  world.push(*again, 1, 0, {1, 1});
  world.push(*b, 1, 0, {2, 2});
  CHECK(last_payload(*b) == std::vector<float>{3, 3});
}

TEST_CASE("a lane that never reads and asks on is closed, with little queued") {
  World world(2);
  world.declare(1, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  a->stuck = true;
  const std::size_t most = (kMaxLaneQueuedBytes + kMaxLaneQueuedBytesPerPartition) / kFrameBytes;
  const auto ask = [&] {
    Message message = World::header(1, 77);  // out of order: fails at once
    a->handler->on_message(message, {});
  };
  for (std::size_t i = 0; i < most; ++i) {
    ask();
  }
  world.loop.run_until([] { return false; }, world.loop.now() + std::chrono::seconds(1));
  CHECK_FALSE(a->closed);
  CHECK(all<RoundFailed>(*a).size() == most);
  for (int i = 0; i < 1000; ++i) {
    ask();
  }
  CHECK(all<RoundFailed>(*a).size() <= most + 1);
  {
    const ExpectLog expected("were not read");
    world.loop.run_until([&] { return a->closed; }, world.loop.now() + std::chrono::seconds(1));
    CHECK(expected.seen() == 1);
  }
  CHECK(a->closed);
  CHECK(all<Refused>(*a).size() == 1);
  CHECK(all<RoundFailed>(*b).empty());
  const auto again = world.open(0, 2);
  world.push(*again, 1, 0, {1, 1});
  world.push(*b, 1, 0, {2, 2});
  CHECK(last_payload(*b) == std::vector<float>{3, 3});
}

TEST_CASE("a worker that stops reading holds back its own rounds only, in the memory reserved for them") {
  World world(2, 0);
  constexpr std::uint32_t kPartitions = 40;
  const std::vector<float> values(8192, 1);
  for (std::uint32_t id = 1; id <= kPartitions; ++id) {
    world.declare(id, values.size());
  }
  const auto a = world.open(0);
  const auto b = world.open(1);
  a->stuck = true;
  for (std::uint64_t round = 0; round < 2; ++round) {  // a pushes on without having read a single answer
    for (std::uint32_t id = 1; id <= kPartitions; ++id) {
      world.push(*a, id, round, values);
      world.push(*b, id, round, values);
      release(*b);
    }
  }
  CHECK(all<Aggregate>(*b).size() == 2 * kPartitions);
  CHECK(a->queued < ServerLane::kSendAheadBytes + values.size() * sizeof(float) + 1024);
  const auto [own, second] = reserved_bytes(DType::f32, values.size(), Mode::sync);
  const std::uint64_t reserved =
      kPartitions * (own + second) + 2 * BufferPool::class_bytes(values.size() * 4);
  CHECK(world.shard->bytes_in_use() <= reserved);
  // Both slots are pinned by what a has not read: b's next waits, and nothing is taken for it.
  for (std::uint32_t id = 1; id <= kPartitions; ++id) {
    world.push(*b, id, 2, values);
  }
  CHECK(all<NotReady>(*b).size() == kPartitions);
  CHECK(world.shard->bytes_in_use() <= reserved);
  CHECK_FALSE(a->closed);
  // A new lane of a reads, and all goes on.
  const auto again = world.open(0, 2);
  for (std::uint32_t id = 1; id <= kPartitions; ++id) {
    world.push(*again, id, 1, values);
    release(*again);
    world.push(*again, id, 2, values);
    world.push(*b, id, 2, values);
  }
  CHECK(all<Aggregate>(*again).size() == 2 * kPartitions);
  CHECK(all<Aggregate>(*b).size() == 3 * kPartitions);
}

TEST_CASE("however often a worker asks, one answer of a round is under way") {
  World world(1);
  const std::vector<float> large(2 * ServerLane::kSendAheadBytes / sizeof(float), 1);
  world.declare(1, large.size());
  world.declare(2, 2);
  const auto a = world.open(0);
  a->hold = true;
  world.push(*a, 1, 0, large);
  world.push(*a, 2, 0, {1, 1});  // waits in the lane
  for (int i = 0; i < 100; ++i) {
    world.push(*a, 1, 0, large);
    world.push(*a, 2, 0, {1, 1});
  }
  CHECK(all<Aggregate>(*a).size() == 1);
  a->queued = 0;
  release(*a);
  CHECK(all<Aggregate>(*a).size() == 2);
  a->queued = 0;
  release(*a);
  CHECK(all<Aggregate>(*a).size() == 2);
  world.push(*a, 2, 0, {1, 1});  // as after a lost answer
  CHECK(all<Aggregate>(*a).size() == 3);
  a->queued = 0;
  release(*a);
  for (std::uint64_t round : {1u, 2u, 3u}) {  // no slot is held back
    world.push(*a, 2, round, {4, 5});
    CHECK(last_payload(*a) == std::vector<float>{4, 5});
    a->queued = 0;
    release(*a);
  }
}

TEST_CASE("failures that a lane provokes do not fill the log") {
  std::size_t lines = 0;
  World world(1, 1 << 20,
              Logger("server", LogTarget::to_callback(
                                   [&](LogLevel, std::string_view, std::string_view text) {
                                     lines += text.find("rank 0: ") != std::string_view::npos ? 1 : 0;
                                   },
                                   LogLevel::info)));
  world.declare(1, 2);
  const auto a = world.open(0);
  for (int i = 0; i < 1000; ++i) {
    world.push(*a, 1, 50, {1, 1});
  }
  CHECK(all<RoundFailed>(*a).size() == 1000);
  CHECK(lines == 1);
}

TEST_CASE("a wrong length fails the round, not the lane") {
  World world(2);
  world.declare(1, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  world.push(*a, 1, 0, {1, 1});
  world.push(*b, 1, 0, {1, 1, 1});
  REQUIRE(all<RoundFailed>(*a).size() == 1);
  REQUIRE(all<RoundFailed>(*b).size() == 1);
  CHECK(all<RoundFailed>(*b)[0].taken == 12);
  CHECK_FALSE(b->closed);
}

TEST_CASE("a dropped tensor is freed when the last lane lets go of it") {
  World world(2);
  world.declare(1, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  a->hold = b->hold = true;
  world.push(*a, 1, 0, {1, 1});
  world.push(*b, 1, 0, {2, 2});
  REQUIRE(world.begin(*a, 1, 1, 2) != nullptr);
  world.shard->drop({0, kRun, {TensorId{1}}, {}});
  CHECK(world.shard->bytes_in_use() > 0);
  Message message = World::header(1, 1);
  a->handler->on_message(message, {});
  release(*a);
  release(*b);
  CHECK(world.shard->bytes_in_use() == lane_buffers(2, 2));
  const std::size_t told = b->sent.size();
  world.push(*b, 1, 1, {2, 2});
  CHECK(b->sent.size() == told);  // the scheduler says why, with TensorFailed
  CHECK_FALSE(b->closed);
}

TEST_CASE("a dropped tensor may be declared again with its numbers, and dropped again") {
  World world(1);
  const auto a = world.open(0);
  for (int i = 0; i < 2; ++i) {
    world.declare(1, 2);
    world.shard->drop({0, kRun, {TensorId{1}}, {}});
  }
  world.declare(1, 2);
  world.push(*a, 1, 0, {3, 4});
  CHECK(last_payload(*a) == std::vector<float>{3, 4});
}

TEST_CASE("a tensor that is dropped twice while lanes still receive both of its lives") {
  World world(2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  world.declare(1, 2);
  REQUIRE(world.begin(*a, 1, 0, 2) != nullptr);
  world.shard->drop({0, kRun, {TensorId{1}}, {}});
  world.declare(1, 2);
  std::byte* const place = world.begin(*b, 1, 0, 2);
  REQUIRE(place != nullptr);
  const std::uint64_t bytes = world.shard->bytes_in_use();
  world.shard->drop({0, kRun, {TensorId{1}}, {}});
  CHECK(world.shard->bytes_in_use() == bytes);
  std::memset(place, 1, 8);
  Message message = World::header(1, 0);
  SECTION("until it is whole") {
    a->handler->on_message(message, {});
    CHECK(world.shard->bytes_in_use() < bytes);
    b->handler->on_message(message, {});
    CHECK_FALSE((a->closed || b->closed));
  }
  SECTION("until they are gone") {
    b->handler->on_closed(make_error(ErrorCode::peer_lost, "cut"));
    CHECK(world.shard->bytes_in_use() < bytes);
    a->handler->on_closed(make_error(ErrorCode::peer_lost, "cut"));
  }
  CHECK(world.shard->bytes_in_use() == lane_buffers(2, 2));
}

TEST_CASE("when a job ends its lanes hear the reason, and when they are closed its memory is free") {
  World world(2);
  world.declare(1, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  world.push(*b, 1, 0, {2, 2});
  REQUIRE(world.begin(*a, 1, 0, 2) != nullptr);
  CHECK(world.shard->bytes_in_use() > 0);
  SECTION("failed") {
    world.shard->end_job(kRun, make_error(ErrorCode::peer_lost, "rank 1 is dead"), [] {});
    REQUIRE(all<Refused>(*a).size() == 1);
    CHECK(all<Refused>(*a)[0].message == "rank 1 is dead");
  }
  SECTION("ended") {
    world.shard->end_job(kRun, Error{}, [] {});
    CHECK(all<Refused>(*a).empty());
  }
  SECTION("shut down") {
    world.shard->shutdown(make_error(ErrorCode::peer_lost, "the server stops"), [] {});
  }
  world.loop.run_for(ServerLane::kFarewell);
  CHECK(a->closed);
  CHECK(b->closed);
  CHECK(world.shard->bytes_in_use() == 0);
  CHECK(world.shard->job_count() == 0);
}

TEST_CASE("a rank that left fails the rounds that wait for it, and opens no lane") {
  World world(2);
  world.declare(1, 2);
  const auto a = world.open(0);
  world.push(*a, 1, 0, {1, 1});
  world.shard->worker_left({kRun, Rank{1}, false});
  REQUIRE(all<RoundFailed>(*a).size() == 1);
  CHECK(all<Refused>(*world.open(1)).size() == 1);
  world.declare(2, 2);
  world.push(*a, 2, 0, {1, 1});
  CHECK(all<RoundFailed>(*a).size() == 2);
}

TEST_CASE("a rank that has dropped a tensor is missed there only, and answers are there until then") {
  World world(2);
  world.declare(1, 2);
  world.declare(2, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  world.push(*a, 1, 0, {1, 1});
  world.push(*b, 1, 0, {2, 2});
  const WorkerLeft drop{kRun, Rank{1}, true, {TensorId{1}, TensorId{7}}};
  world.shard->worker_left(drop);
  world.shard->worker_left(drop);
  CHECK(last_payload(*a) == std::vector<float>{3, 3});
  CHECK(all<RoundFailed>(*a).empty());
  world.push(*a, 1, 1, {1, 1});
  REQUIRE(all<RoundFailed>(*a).size() == 1);
  CHECK(all<RoundFailed>(*a)[0].error.code == ErrorCode::configuration);
  CHECK_THAT(all<RoundFailed>(*a)[0].error.message, Catch::Contains("rank 1 has dropped the tensor"));
  CHECK_THAT(all<RoundFailed>(*a)[0].error.advice, Catch::Contains("before one drops it"));
  world.push(*b, 2, 0, {2, 2});
  world.push(*a, 2, 0, {1, 1});
  CHECK(last_payload(*b) == std::vector<float>{3, 3});
  // And then it leaves.
  world.shard->worker_left({kRun, Rank{1}, true});
  world.push(*a, 2, 1, {1, 1});
  REQUIRE(all<RoundFailed>(*a).size() == 2);
  CHECK_THAT(all<RoundFailed>(*a)[1].error.message, Catch::Contains("rank 1 has left the job"));
}

TEST_CASE("a rank that drops a tensor whose round waits for it ends that round") {
  World world(3);
  world.declare(1, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  const auto c = world.open(2);
  world.push(*a, 1, 0, {1, 1});
  world.push(*b, 1, 0, {2, 2});
  SECTION("it has not given to it") {
    world.shard->worker_left({kRun, Rank{2}, true, {TensorId{1}}});
    for (const auto* rank : {&a, &b}) {
      REQUIRE(all<RoundFailed>(**rank).size() == 1);
      CHECK_THAT(all<RoundFailed>(**rank)[0].error.message, Catch::Contains("rank 2 has dropped the tensor"));
    }
  }
  SECTION("it has") {
    world.shard->worker_left({kRun, Rank{1}, true, {TensorId{1}}});
    world.push(*c, 1, 0, {4, 4});
    CHECK(last_payload(*a) == std::vector<float>{7, 7});
    CHECK(all<RoundFailed>(*a).empty());
  }
}

TEST_CASE("numbers of what was dropped are remembered, and not for ever") {
  const ExpectLog expected("partition 1 is not on this shard");
  World world(1);
  const auto a = world.open(0);
  const auto drop_one = [&](std::uint32_t id) {
    world.declare(id, 1);
    world.shard->drop({0, kRun, {TensorId{id}}, {}});
  };
  drop_one(1);
  drop_one(1);  // it had come back
  world.push(*a, 1, 0, {1});
  CHECK(all<Refused>(*a).empty());
  for (std::uint32_t id = 2; id <= JobPartitions::kDroppedRemembered; ++id)
    drop_one(id);
  world.push(*a, 1, 0, {1});
  CHECK(all<Refused>(*a).empty());
  drop_one(JobPartitions::kDroppedRemembered + 1);
  world.push(*a, 1, 0, {1});
  CHECK(all<Refused>(*a).size() == 1);
}

}  // namespace
}  // namespace bps::shard_test

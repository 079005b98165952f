// Partitions that come from another server, on a shard with lanes.
#include "server/testing/shard_harness.h"

namespace bps::shard_test::shard_moving_test {
namespace {

constexpr Epoch kEpoch{2};

void resume(Wire& wire, std::vector<StoredRounds> partitions, Epoch epoch = kEpoch) {
  Message message = Resume{kRun, epoch, {}, std::move(partitions)};
  wire.handler->on_message(message, {});
}

Retained retained(std::uint32_t partition, std::uint64_t round, Epoch epoch = kEpoch) {
  Retained header;
  header.job_run = kRun;
  header.partition = PartitionId{partition};
  header.round = Round{round};
  header.epoch = epoch;
  header.weight = 2;
  return header;
}

void give(Wire& wire, const Retained& header, const std::vector<float>& values) {
  const std::size_t bytes = values.size() * sizeof(float);
  std::byte* const place = wire.handler->on_payload(header, bytes);
  if (wire.handler == nullptr) return;
  if (place != nullptr) std::memcpy(place, values.data(), bytes);
  Message message = header;
  wire.handler->on_message(message, {place, place != nullptr ? bytes : 0});
}

void push(Wire& wire, std::uint32_t partition, std::uint64_t round, Epoch epoch,
          const std::vector<float>& values) {
  PushPull header = World::header(partition, round);
  header.epoch = epoch;
  World::push(wire, header, values);
}

TEST_CASE("a partition moves here: reports, fetch, answer, and the next round") {
  World world(2);
  world.move(1, 2, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  resume(*b, {{PartitionId{1}, Round{4}}});
  CHECK(all<Resumed>(*b).empty());
  resume(*a, {{PartitionId{1}, Round{5}}});
  REQUIRE(all<Fetch>(*a).size() == 1);
  CHECK(all<Fetch>(*a)[0] == Fetch{PartitionId{1}, Round{4}, 0});
  give(*a, retained(1, 4), {7, 8});
  REQUIRE(all<Resumed>(*a).size() == 1);
  CHECK(all<Resumed>(*a)[0] == Resumed{PartitionId{1}, Round{5}, 8});
  CHECK(all<Aggregate>(*a).empty());
  CHECK(all<Resumed>(*b).size() == 1);
  REQUIRE(all<Aggregate>(*b).size() == 1);
  CHECK(all<Aggregate>(*b)[0].round == Round{4});
  CHECK(all<Aggregate>(*b)[0].epoch == kEpoch);
  CHECK(all<Aggregate>(*b)[0].weight == 2);
  CHECK(last_payload(*b) == std::vector<float>{7, 8});
  push(*a, 1, 5, kEpoch, {1, 2});
  push(*b, 1, 5, kEpoch, {10, 20});
  CHECK(last_payload(*a) == std::vector<float>{11, 22});
  CHECK(last_payload(*b) == std::vector<float>{11, 22});
  CHECK(all<Aggregate>(*a).at(0).epoch == kEpoch);
}

TEST_CASE("one Resume names many partitions; a push counts as one, and is asked for again") {
  World world(2);
  world.move(1, 2, 2);
  world.move(2, 2, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  push(*a, 1, 3, kEpoch, {1, 1});
  CHECK(all<NotReady>(*a).size() == 1);
  resume(*a, {{PartitionId{2}, Round{6}}});
  resume(*b, {{PartitionId{1}, Round{3}}, {PartitionId{2}, Round{6}}});
  CHECK(all<Resumed>(*b).size() == 2);
  CHECK(all<Resumed>(*a).size() == 2);
  REQUIRE(all<ClearToSend>(*a).size() == 1);
  CHECK(all<ClearToSend>(*a)[0].taken == 8);
  push(*a, 1, 3, kEpoch, {1, 1});
  push(*b, 1, 3, kEpoch, {2, 2});
  CHECK(last_payload(*a) == std::vector<float>{3, 3});
}

TEST_CASE("if the lane breaks that was asked, the next one is, and nothing is left of the first") {
  World world(3);
  world.move(1, 2, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  const auto c = world.open(2);
  const std::uint64_t own = world.shard->bytes_in_use();
  resume(*a, {{PartitionId{1}, Round{1}}});
  resume(*b, {{PartitionId{1}, Round{1}}});
  resume(*c, {{PartitionId{1}, Round{0}}});
  REQUIRE(all<Fetch>(*a).size() == 1);
  CHECK(a->handler->on_payload(retained(1, 0), 8) != nullptr);
  const auto fresh = world.open(0, 2);
  CHECK(a->closed);
  CHECK(all<Fetch>(*b).size() == 1);
  b->handler->on_closed(make_error(ErrorCode::peer_lost, "cut"));
  CHECK(world.shard->bytes_in_use() == own);
  resume(*fresh, {{PartitionId{1}, Round{1}}});
  REQUIRE(all<Fetch>(*fresh).size() == 1);
  give(*fresh, retained(1, 0), {5, 5});
  CHECK(last_payload(*c) == std::vector<float>{5, 5});
  const auto back = world.open(1, 2);
  resume(*back, {{PartitionId{1}, Round{1}}});
  CHECK(all<Resumed>(*back).size() == 1);
}

TEST_CASE("an aggregate that nobody asked for is dropped and counted") {
  World world(1);
  world.declare(1, 2);
  const auto a = world.open(0, 1, 1);
  Retained header = retained(1, 0, {});
  CHECK(a->handler->on_payload(header, 8) == nullptr);
  Message message = header;
  a->handler->on_message(message, {});
  REQUIRE(all<Credit>(*a).size() == 1);
  CHECK(all<Credit>(*a)[0].taken == 8);
  LentPayload nothing;
  CHECK_FALSE(a->handler->on_lent(message, nothing));
  World::push(*a, 1, 0, {1, 2});
  CHECK(last_payload(*a) == std::vector<float>{1, 2});
}

TEST_CASE("frames of workers that do not know the epoch yet, and of those who know a newer one") {
  const ExpectLog refusals("lane closed");
  World world(1);
  world.declare(1, 2);
  world.move(2, 2, 2);
  const auto a = world.open(0);
  SECTION("what was here before may be pushed in its epoch") {
    World::push(*a, 1, 0, {1, 2});
    REQUIRE(all<Aggregate>(*a).size() == 1);
    CHECK(all<Aggregate>(*a)[0].epoch == Epoch{});
  }
  SECTION("what came later may not") {
    push(*a, 2, 0, Epoch{1}, {1, 2});
    REQUIRE(all<Refused>(*a).size() == 1);
    CHECK(all<Refused>(*a)[0].code == ErrorCode::protocol);
    CHECK(all<Refused>(*a)[0].message == "partition 2 is here since epoch 2, the frame is of 1");
  }
  SECTION("nor resumed") {
    resume(*a, {{PartitionId{2}, Round{0}}}, Epoch{1});
    CHECK(all<Refused>(*a).at(0).code == ErrorCode::protocol);
  }
  SECTION("newer: the worker comes back") {
    push(*a, 1, 0, Epoch{3}, {1, 2});
    CHECK(all<Refused>(*a).at(0).code == ErrorCode::peer_lost);
    const auto again = world.open(0, 2);
    give(*again, retained(2, 0, Epoch{3}), {1, 2});
    CHECK(all<Refused>(*again).at(0).code == ErrorCode::peer_lost);
  }
  SECTION("a partition that is not here may be resumed: it was dropped long ago; but not pushed") {
    resume(*a, {{PartitionId{9}, Round{0}}, {PartitionId{2}, Round{0}}});
    CHECK(all<Resumed>(*a).size() == 1);
    CHECK_FALSE(a->closed);
    push(*a, 9, 0, Epoch{2}, {1, 2});
    CHECK(all<Refused>(*a).at(0).message == "partition 9 is not on this shard");
  }
}

TEST_CASE("a tensor of which a part has moved here is dropped with all its parts") {
  World world(2);
  world.declare(1, 2);
  TensorSlices rest;
  rest.tensor = TensorId{1};
  rest.name = "t1";
  rest.partitions.push_back({PartitionId{5}, 0, 2});
  world.shard->declare(DeclareSlices{0, kRun, kEpoch, true, {rest}});
  const auto a = world.open(0);
  const auto b = world.open(1);
  resume(*a, {{PartitionId{5}, Round{1}}});
  resume(*b, {{PartitionId{5}, Round{0}}});
  REQUIRE(a->handler->on_payload(retained(5, 0), 8) != nullptr);
  world.shard->drop({0, kRun, {TensorId{1}}, {}});
  Message message = retained(5, 0);
  a->handler->on_message(message, {});
  resume(*b, {{PartitionId{5}, Round{0}}, {PartitionId{1}, Round{0}}});
  b->handler->on_closed(make_error(ErrorCode::peer_lost, "cut"));
  a->handler->on_closed(make_error(ErrorCode::peer_lost, "cut"));
  CHECK(world.shard->bytes_in_use() == lane_buffers(2, 2));
}

TEST_CASE("a partition that is not to move here after all leaves nothing behind") {
  World world(2);
  world.declare(1, 2);
  TensorSlices rest;
  rest.tensor = TensorId{1};
  rest.name = "t1";
  rest.partitions.push_back({PartitionId{5}, 0, 2});
  world.shard->declare(DeclareSlices{0, kRun, kEpoch, true, {rest}});
  const auto a = world.open(0);
  const auto b = world.open(1);
  const auto open_rounds = [&] {
    OpenRoundList open;
    world.shard->survey(kRun, std::nullopt, open, nullptr);
    return open.take(1).rounds.size();
  };
  const bool is_known = GENERATE(true, false);  // by somebody who has been told of it
  if (is_known) resume(*a, {{PartitionId{5}, Round{1}}});
  const std::size_t in_use = world.shard->bytes_in_use();
  world.shard->drop({0, kRun, {}, {PartitionId{5}, PartitionId{9}}});
  CHECK(open_rounds() == 0);
  CHECK(world.shard->bytes_in_use() <= in_use);
  // The rest of the tensor works.
  resume(*a, {{PartitionId{1}, Round{0}}});
  CHECK(all<Refused>(*a).empty());
  // It may come again.
  rest.partitions[0].elements = 2;
  world.shard->declare(DeclareSlices{0, kRun, Epoch{kEpoch.value + 1}, true, {rest}});
  resume(*a, {{PartitionId{5}, Round{1}}}, Epoch{kEpoch.value + 1});
  resume(*b, {{PartitionId{5}, Round{1}}}, Epoch{kEpoch.value + 1});
  CHECK(all<Resumed>(*b).size() == 1);
}

TEST_CASE("a rank that leaves is not waited for") {
  World world(2);
  world.move(1, 2, 2);
  const auto a = world.open(0);
  resume(*a, {{PartitionId{1}, Round{2}}});
  CHECK(all<Resumed>(*a).empty());
  world.shard->worker_left({kRun, Rank{1}, false});
  CHECK(all<Resumed>(*a).size() == 1);
  world.move(2, 2, 3);
  resume(*a, {{PartitionId{2}, Round{2}}}, Epoch{3});
  CHECK(all<Resumed>(*a).size() == 2);
}

TEST_CASE("a rank that has dropped the tensor is waited for, and gives what it keeps") {
  World world(2);
  world.move(1, 2, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  const WorkerLeft drop{kRun, Rank{1}, true, {TensorId{1}}};
  const bool reports_first = GENERATE(false, true);
  resume(*a, {{PartitionId{1}, Round{4}}});
  if (reports_first) resume(*b, {{PartitionId{1}, Round{5}}});
  world.shard->worker_left(drop);
  world.shard->worker_left(drop);
  CHECK(all<Resumed>(*a).empty());
  if (!reports_first) resume(*b, {{PartitionId{1}, Round{5}}});
  REQUIRE(all<Fetch>(*b).size() == 1);
  give(*b, retained(1, 4), {7, 8});
  REQUIRE(all<Resumed>(*a).size() == 1);
  CHECK(last_payload(*a) == std::vector<float>{7, 8});
  // The next round is one too many.
  push(*a, 1, 5, kEpoch, {1, 1});
  REQUIRE(all<RoundFailed>(*a).size() == 1);
  CHECK_THAT(all<RoundFailed>(*a)[0].error.message, Catch::Contains("rank 1 has dropped the tensor"));
}

}  // namespace
}  // namespace bps::shard_test::shard_moving_test

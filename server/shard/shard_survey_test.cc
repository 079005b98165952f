// What a shard says about its open rounds.
#include "server/testing/shard_harness.h"

namespace bps::shard_test {
namespace {

OpenRounds survey(World& world, std::optional<TensorId> tensor = {}, JobRun run = kRun) {
  OpenRoundList list;
  world.shard->survey(run, tensor, list, nullptr);
  return list.take(0);
}

TEST_CASE("survey: a round is as old as its first contribution, and names who is missing") {
  World world(3);
  world.declare(1, 3);
  world.declare(2, 3);
  const auto a = world.open(0);
  const auto b = world.open(1);
  CHECK(survey(world).rounds.empty());
  world.push(*b, 1, 0, {1, 2, 3});
  world.loop.run_for(std::chrono::milliseconds(300));
  world.push(*a, 1, 0, {1, 2, 3});
  world.push(*a, 2, 0, {1, 2, 3});
  world.loop.run_for(std::chrono::milliseconds(200));
  const OpenRounds open = survey(world);
  REQUIRE(open.rounds.size() == 2);
  CHECK(open.rounds[0] == OpenRound{TensorId{1}, Round{0}, 500, RoundStage::push, 1, 3, 1, {Rank{2}}});
  CHECK(open.rounds[1] ==
        OpenRound{TensorId{2}, Round{0}, 200, RoundStage::push, 1, 3, 2, {Rank{1}, Rank{2}}});
  const OpenRounds one = survey(world, TensorId{2});
  REQUIRE(one.rounds.size() == 1);
  CHECK(one.rounds[0].tensor == TensorId{2});
  CHECK(survey(world, TensorId{9}).rounds.empty());
  CHECK(survey(world, {}, JobRun{123}).rounds.empty());
}

TEST_CASE("survey: each round has its own age; one that is asked for again does not begin anew") {
  World world(2);
  world.declare(1, 1);
  const auto a = world.open(0);
  const auto b = world.open(1);
  world.push(*a, 1, 0, {1});
  world.push(*b, 1, 0, {1});
  CHECK(survey(world).rounds.empty());
  world.loop.run_for(std::chrono::seconds(5));
  world.push(*a, 1, 1, {1});
  world.loop.run_for(std::chrono::milliseconds(40));
  const auto again = world.open(0, 2);
  world.push(*again, 1, 0, {1});
  world.push(*again, 1, 1, {1});
  const OpenRounds open = survey(world);
  REQUIRE(open.rounds.size() == 1);
  CHECK(open.rounds[0].round == Round{1});
  CHECK(open.rounds[0].age_ms == 40);
}

TEST_CASE("survey: partitions that have moved here wait from the beginning") {
  World world(2);
  world.move(1, 3, 2);
  world.loop.run_for(std::chrono::milliseconds(70));
  TensorNames names;
  OpenRoundList list;
  world.shard->survey(kRun, std::nullopt, list, &names);
  const OpenRounds open = list.take(0);
  REQUIRE(open.rounds.size() == 1);
  CHECK(open.rounds[0].stage == RoundStage::resume);
  CHECK(open.rounds[0].age_ms == 70);
  CHECK(open.rounds[0].absent == 2);
  CHECK(names.at(TensorId{1}) == "t1");
}

}  // namespace
}  // namespace bps::shard_test

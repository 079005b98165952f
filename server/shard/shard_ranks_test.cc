// Tensors that only some members of a job share, on a shard with lanes (decision 0036).
#include "server/testing/shard_harness.h"

namespace bps::shard_test {
namespace {

using Ranks = std::vector<Rank>;

TensorSlices shared(std::uint32_t id, std::uint64_t elements, Ranks ranks) {
  TensorSlices slices = World::tensor(id, elements);
  slices.ranks = std::move(ranks);
  return slices;
}

void declare(World& world, const TensorSlices& slices, bool moved = false, std::uint32_t epoch = 0) {
  world.shard->declare(DeclareSlices{0, kRun, Epoch{epoch}, moved, {slices}});
}

std::size_t answers(const std::shared_ptr<Wire>& wire) { return all<Aggregate>(*wire).size(); }

}  // namespace

TEST_CASE("shard ranks: its ranks make the sum, in the order in which they are listed") {
  World world(4);
  // In this order each 1 is lost to rounding; 1 + 1 first would make it 2^24 + 2.
  declare(world, shared(1, 1, {Rank{3}, Rank{0}, Rank{2}}));
  std::vector<std::shared_ptr<Wire>> wires;
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    wires.push_back(world.open(rank));
  World::push(*wires[0], 1, 0, {1});
  World::push(*wires[2], 1, 0, {1});
  CHECK(answers(wires[0]) == 0);
  World::push(*wires[3], 1, 0, {16777216});
  for (const std::uint32_t rank : {0u, 2u, 3u}) {
    REQUIRE(answers(wires[rank]) == 1);
    CHECK(all<Aggregate>(*wires[rank])[0].weight == 3);
    CHECK(last_payload(*wires[rank]) == std::vector<float>{16777216});
  }
  CHECK(answers(wires[1]) == 0);
}

TEST_CASE("shard ranks: groups that overlap do not disturb each other, nor the job") {
  World world(3);
  declare(world, shared(1, 1, {Rank{0}, Rank{1}}));
  declare(world, shared(2, 1, {Rank{1}, Rank{2}}));
  declare(world, shared(3, 1, {Rank{1}}));
  world.declare(4, 1);
  const auto a = world.open(0), b = world.open(1), c = world.open(2);
  World::push(*b, 3, 0, {5});
  CHECK(last_payload(*b) == std::vector<float>{5});
  World::push(*b, 1, 0, {1});
  World::push(*b, 2, 0, {2});
  World::push(*b, 4, 0, {4});
  World::push(*c, 4, 0, {30});
  World::push(*c, 2, 0, {10});
  CHECK(last_payload(*c) == std::vector<float>{12});
  World::push(*a, 4, 0, {100});
  CHECK(last_payload(*a) == std::vector<float>{134});
  World::push(*a, 1, 0, {7});
  CHECK(last_payload(*a) == std::vector<float>{8});
}

TEST_CASE("shard ranks: a rank that does not share the tensor breaks a rule if it sends to it") {
  const ExpectLog refused("tensor 't1' is not of rank 2");
  World world(3);
  declare(world, shared(1, 1, {Rank{0}, Rank{1}}));
  const auto c = world.open(2);
  World::push(*c, 1, 0, {1});
  CHECK(c->closed);
}

TEST_CASE("shard ranks: a tensor whose ranks are all lost, or are none, waits for nobody and harms nobody") {
  World world(2);
  declare(world, shared(1, 1, {Rank{7}, Rank{8}}));
  declare(world, shared(2, 1, {Rank{9}}), true, 2);
  const auto a = world.open(0), b = world.open(1);
  Message resume = Resume{kRun, Epoch{2}, {}, {{PartitionId{2}, Round{0}}}};
  a->handler->on_message(resume, {});
  CHECK_FALSE(a->closed);
  world.open(0, 2);  // the lane before it goes
  world.shard->worker_left(WorkerLeft{kRun, Rank{1}, true, {TensorId{1}}});
  world.shard->worker_left(WorkerLeft{kRun, Rank{1}, false, {}});
  world.shard->shrink(Shrunk{1, kRun, Generation{2}, {Rank{0}}, 0, "rank 0 is gone"});
  CHECK(all<Aggregate>(*b).empty());
}

TEST_CASE("shard ranks: when a tensor moves its ranks are waited for, and the others may resume it, too") {
  World world(3);
  declare(world, shared(1, 1, {Rank{2}, Rank{1}}), true, 2);
  const auto a = world.open(0), b = world.open(1), c = world.open(2);
  Message resume = Resume{kRun, Epoch{2}, {}, {{PartitionId{1}, Round{7}}}};
  Message never = Resume{kRun, Epoch{2}, {}, {{PartitionId{1}, Round{0}}}};
  a->handler->on_message(never, {});
  CHECK_FALSE(a->closed);
  b->handler->on_message(resume, {});
  CHECK(all<Resumed>(*b).empty());
  c->handler->on_message(resume, {});
  CHECK(all<Resumed>(*b).size() == 1);
  CHECK(all<Resumed>(*c).at(0).round == Round{7});
  CHECK(all<Resumed>(*a).empty());
}

TEST_CASE("shard ranks: who leaves or is lost is missing in its groups only, also in those that come later") {
  World world(4);
  const bool is_lost = GENERATE(false, true);
  declare(world, shared(1, 1, {Rank{0}, Rank{1}}));
  declare(world, shared(2, 1, {Rank{3}, Rank{2}, Rank{0}}));
  const auto a = world.open(0), b = world.open(1), c = world.open(2), d = world.open(3);
  World::push(*a, 2, 0, {1});
  World::push(*d, 2, 0, {4});
  if (is_lost) {
    world.shard->shrink(Shrunk{1, kRun, Generation{2}, {Rank{2}}, 0, "rank 2 is gone"});
    CHECK(all<Aggregate>(*a).at(0).weight == 2);
    CHECK(last_payload(*d) == std::vector<float>{5});
  } else {
    world.shard->worker_left(WorkerLeft{kRun, Rank{2}, true, {}});
    REQUIRE(all<RoundFailed>(*a).size() == 1);
    CHECK(all<RoundFailed>(*d).size() == 1);
  }
  World::push(*a, 1, 0, {1});
  World::push(*b, 1, 0, {2});
  CHECK(last_payload(*b) == std::vector<float>{3});
  declare(world, shared(3, 1, {Rank{2}, Rank{1}}));
  World::push(*b, 3, 0, {6});
  if (is_lost) {
    CHECK(last_payload(*b) == std::vector<float>{6});
    CHECK(all<Aggregate>(*b).back().weight == 1);
  } else {
    CHECK(all<RoundFailed>(*b).size() == 1);
  }
  CHECK(answers(c) == 0);
}

TEST_CASE("shard ranks: tensors of groups come and go") {
  World world(3);
  const auto a = world.open(0), b = world.open(1);
  for (std::uint32_t i = 0; i < 200; ++i) {
    const Ranks ranks = i % 2 == 0 ? Ranks{Rank{1}, Rank{0}} : Ranks{Rank{0}, Rank{1}};
    declare(world, shared(i, 1, ranks));
    World::push(*a, i, 0, {1});
    World::push(*b, i, 0, {2});
    CHECK(last_payload(*a) == std::vector<float>{3});
    release(*a);
    release(*b);
    world.shard->drop(DropTensors{0, kRun, {TensorId{i}}, {}});
  }
}

}  // namespace bps::shard_test

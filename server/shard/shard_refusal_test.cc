// A lane that is refused while answers are on their way stays for them, and does no harm meanwhile.
#include "server/testing/shard_harness.h"

namespace bps::shard_test {
namespace {

void talk_nonsense(const Wire& wire) {
  Message nonsense = Credit{};
  wire.handler->on_message(nonsense, {});
}

}  // namespace

TEST_CASE("a payload on its way is followed by the Refused, and both have time to arrive") {
  World world(1);
  world.declare(1, 2);
  const auto a = world.open(0);
  a->hold = true;
  World::push(*a, 1, 0, {1, 1});
  REQUIRE(all<Aggregate>(*a).size() == 1);
  const ExpectLog expected("broke a rule");
  talk_nonsense(*a);
  CHECK(all<Refused>(*a).size() == 1);
  CHECK_FALSE(a->closed);
  CHECK(world.shard->bytes_in_use() > 0);
  // Nothing counts any more.
  World::push(*a, 1, 1, {2, 2});
  talk_nonsense(*a);
  CHECK(a->sent.size() == 3);  // Welcome, Aggregate, Refused
  std::shared_ptr<Wire> next;
  SECTION("until the worker has closed the connection") {
    a->handler->on_closed(make_error(ErrorCode::peer_lost, "closed by the peer"));
  }
  SECTION("but not for long") {
    world.loop.run_for(ServerLane::kLinger - std::chrono::milliseconds(1));
    CHECK_FALSE(a->closed);
    world.loop.run_for(std::chrono::milliseconds(1));
  }
  SECTION("or until the worker comes back") { next = world.open(0, 2); }
  SECTION("or until the job ends") { world.shard.reset(); }
  CHECK(a->closed);
  if (world.shard == nullptr) return;
  if (next == nullptr) next = world.open(0, 2);
  World::push(*next, 1, 1, {3, 3});
  CHECK(last_payload(*next) == std::vector<float>{3, 3});
}

TEST_CASE("a worker that is refused and comes back, again and again, keeps one connection, and goes on") {
  World world(1);
  world.declare(1, 2);
  const ExpectLog expected("broke a rule");
  std::shared_ptr<Wire> before;
  for (std::uint64_t round = 0; round < 6; ++round) {
    const auto lane = world.open(0, round + 1);
    CHECK((before == nullptr || before->closed));
    lane->hold = true;
    const auto value = static_cast<float>(round);
    World::push(*lane, 1, round, {value, value});  // its slot is free of what was being read
    CHECK(last_payload(*lane) == std::vector<float>{value, value});
    talk_nonsense(*lane);
    CHECK_FALSE(lane->closed);
    before = lane;
  }
}

TEST_CASE("a lane with too much unread, that is refused for something else in the same turn, goes once") {
  World world(2);
  world.declare(1, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  a->hold = true;
  World::push(*a, 1, 0, {1, 1});
  World::push(*b, 1, 0, {2, 2});
  REQUIRE(all<Aggregate>(*a).size() == 1);
  a->stuck = true;
  const std::size_t most = (kMaxLaneQueuedBytes + kMaxLaneQueuedBytesPerPartition) / kFrameBytes;
  for (std::size_t i = 0; i < most + 2; ++i) {
    Message message = World::header(1, 77);  // out of order: fails at once
    a->handler->on_message(message, {});
  }
  REQUIRE(all<RoundFailed>(*a).size() == most + 1);  // the last one was not said: it is to be closed
  SECTION("it broke another rule") {
    const ExpectLog expected("Credit has no place on a lane");
    talk_nonsense(*a);
    CHECK(expected.seen() == 1);
  }
  SECTION("it is lost") {
    world.shard->shrink(Shrunk{1, kRun, Generation{2}, {Rank{0}}, 0, "rank 0 is gone"});
  }
  CHECK_FALSE(a->closed);
  world.loop.run_for(ServerLane::kLinger);
  CHECK(a->closed);
  CHECK(all<Refused>(*a).size() == 1);
}

TEST_CASE("a refused lane that lets go of an answer after the end of the job tells nobody") {
  World world(3, 0);
  world.declare(1, 2);
  const auto a = world.open(0);
  const auto b = world.open(1);
  const auto c = world.open(2);
  c->hold = true;
  for (std::uint64_t round : {0u, 1u}) {
    for (const auto& lane : {a, b, c})
      World::push(*lane, 1, round, {1, 1});
    release(*a);
    release(*b);
  }
  REQUIRE(all<Aggregate>(*c).size() == 2);
  // Its slot is being read; once it is not, rank 0 is asked for this again.
  World::push(*a, 1, 2, {1, 1});
  REQUIRE(all<NotReady>(*a).size() == 1);
  {
    const ExpectLog expected("broke a rule");
    talk_nonsense(*c);
  }
  bool done = false, ended = true;
  SECTION("while the job goes on, it does") { ended = false; }
  SECTION("whose lane is open") {
    world.shard->end_job(kRun, make_error(ErrorCode::peer_lost, "rank 1 is dead"), [&] { done = true; });
  }
  SECTION("whose lane is closed") {
    world.shard->end_job(kRun, make_error(ErrorCode::peer_lost, "rank 1 is dead"), [&] { done = true; });
    a->handler->on_closed(make_error(ErrorCode::peer_lost, "closed by the peer"));
  }
  world.loop.run_for(ServerLane::kLinger);
  CHECK(c->closed);
  CHECK(all<ClearToSend>(*a).size() == (ended ? 0 : 1));
  CHECK(all<Refused>(*a).size() == (ended ? 1 : 0));
  CHECK_FALSE(done);
  if (!ended) return;
  CHECK(std::holds_alternative<Refused>(a->sent.back().message));
  b->handler->on_closed(make_error(ErrorCode::peer_lost, "closed by the peer"));
  world.loop.run_for(ServerLane::kFarewell);
  CHECK(done);
  CHECK(world.shard->bytes_in_use() == 0);
}

}  // namespace bps::shard_test

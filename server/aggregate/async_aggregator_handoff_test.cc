// Asynchronous partitions that moved here. What is asked and answered is also proven by the simulator.
#include <catch2/catch.hpp>
#include <cstring>

#include "server/testing/aggregator_harness.h"

namespace bps {
namespace {

using Kind = Action::Kind;

struct MovedValue : Bench {
  explicit MovedValue(std::uint32_t ranks, std::uint32_t staleness = kUnboundedStaleness)
      : Bench(ranks, 1 << 20, Mode::async) {
    PartitionShape shape = aggregator->shape();
    shape.moved = true;
    shape.staleness = staleness;
    recreate(shape);
  }
  void stored(std::uint32_t rank, std::uint64_t round, std::uint64_t version, std::uint32_t broadcasts = 1) {
    actions.clear();
    aggregator->resume(rank, {PartitionId{7}, Round{round}, version, broadcasts}, actions);
  }
  void retained(std::uint32_t rank, std::uint64_t version, float value, std::vector<Round> applied,
                Error error = {}) {
    actions.clear();
    Retained header;
    header.version = version;
    header.broadcasts = 1;
    header.applied = std::move(applied);
    header.error = error;
    const bool fine = error.code == ErrorCode::ok;
    const std::vector<float> raw(kElements, value);
    const Destination place = aggregator->begin_retained(rank, header, fine ? kElements * sizeof(float) : 0);
    if (fine) {
      REQUIRE(place.kind == Destination::Kind::memory);
      std::memcpy(place.memory, raw.data(), kElements * sizeof(float));
    }
    aggregator->end_retained(rank, actions);
  }
  // Asks for the answer to a round that is in the value.
  void ask(std::uint32_t rank, std::uint64_t round, Operation operation = Operation::sum) {
    actions.clear();
    PushPull header = this->header(rank, round, operation);
    header.rendezvous = true;
    (void)aggregator->begin(rank, header, 0, actions);
    aggregator->end(rank, nullptr, actions);
  }
  std::uint64_t resumed(std::uint32_t rank) const {
    for (const Action& action : actions) {
      if (action.kind == Kind::resumed && action.contributor == rank) return action.round.value;
    }
    return ~std::uint64_t{0};
  }
};

TEST_CASE("moved value: the newest is fetched, and each goes on behind what it holds") {
  MovedValue bench(3);
  bench.stored(0, 2, 5);
  bench.stored(1, 1, 4);
  CHECK(bench.actions.empty());
  bench.stored(2, 3, 0);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::fetch);
  CHECK(bench.actions[0].contributor == 0);
  CHECK(bench.actions[0].version == 5);
  bench.retained(0, 5, 100, {Round{2}, Round{2}, Round{1}});
  CHECK(bench.resumed(0) == 2);
  CHECK(bench.resumed(1) == 2);  // its round 1 is in the value
  CHECK(bench.resumed(2) == 3);  // its rounds 1 and 2 have failed
  bench.ask(1, 1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(first_element(bench.actions[0]) == 100.0f);
  CHECK(bench.actions[0].version == 5);
  bench.unpin(Action(bench.actions[0]));
  bench.push(0, 2, 7);
  REQUIRE(bench.actions.size() == 1);
  CHECK(first_element(bench.actions[0]) == 107.0f);
  CHECK(bench.actions[0].version == 6);
  CHECK(bench.actions[0].applied[0] == Round{3});
  CHECK(bench.actions[0].applied[1] == Round{2});
  CHECK(bench.actions[0].applied[2] == Round{3});
}

TEST_CASE("moved value: nobody has one, so it begins anew") {
  MovedValue bench(2);
  bench.stored(0, 0, 0, 0);
  bench.stored(1, 0, 0, 0);
  CHECK(bench.resumed(0) == 0);
  CHECK(bench.resumed(1) == 0);
  bench.push(0, 0, 3, RoundCall::broadcast(Rank{0}));
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].version == 1);
}

TEST_CASE(
    "moved value: another one who has it is asked, and if nobody can tell, deltas fail until a broadcast") {
  MovedValue bench(2);
  bench.stored(0, 2, 5);
  bench.stored(1, 2, 5);
  bench.retained(0, 5, 0, {}, make_error(ErrorCode::internal, "not kept"));
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::fetch);
  CHECK(bench.actions[0].contributor == 1);
  SECTION("its lane breaks, and it comes back") {
    bench.actions.clear();
    bench.aggregator->lost(1, bench.actions);
    CHECK(bench.actions.empty());
    bench.stored(1, 2, 5);
    REQUIRE(bench.actions.size() == 1);
    CHECK(bench.actions[0].kind == Kind::fetch);
    bench.retained(1, 5, 100, {Round{2}, Round{2}});
    CHECK(bench.resumed(1) == 2);
  }
  SECTION("nor has it") {
    bench.retained(1, 5, 0, {}, make_error(ErrorCode::internal, "not kept"));
    CHECK(bench.resumed(0) == 2);
    bench.push(0, 2, 1);
    REQUIRE(bench.actions.size() == 1);
    CHECK(bench.actions[0].kind == Kind::failed);
    bench.push(0, 3, 9, RoundCall::broadcast(Rank{0}));
    REQUIRE(bench.actions.size() == 1);
    CHECK(bench.actions[0].version == 6);  // never starts over
  }
}

TEST_CASE("moved value: who dies is forgotten with what it alone had") {
  MovedValue bench(3);
  bench.stored(0, 2, 5);
  bench.stored(1, 2, 6);
  bench.aggregator->lost(1, bench.actions);
  bench.aggregator->died(1, bench.actions);
  bench.stored(2, 2, 4);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].contributor == 0);
  CHECK(bench.actions[0].version == 5);
}

TEST_CASE("moved value: the staleness bound goes on") {
  MovedValue bench(2, 0);
  bench.stored(0, 1, 2);
  bench.stored(1, 1, 1);
  bench.retained(0, 2, 100, {Round{2}, Round{1}});
  CHECK(bench.resumed(0) == 2);
  bench.ask(0, 1);
  CHECK(bench.actions.empty());  // rank 1 has not done its round 1
  bench.push(1, 1, 7);
  CHECK(bench.actions.size() == 2);
  CHECK(first_element(bench.actions[0]) == 107.0f);
}

TEST_CASE("moved value: a broadcast that has been done answers those that come later") {
  MovedValue bench(2);
  bench.stored(0, 1, 1);
  bench.stored(1, 0, 0, 0);
  bench.retained(0, 1, 100, {Round{1}, Round{0}});
  bench.push(1, 0, 0, RoundCall::broadcast(Rank{0}));
  REQUIRE(bench.actions.size() == 1);
  CHECK(first_element(bench.actions[0]) == 100.0f);
}

TEST_CASE(
    "async: an answer does not count a last round that has failed, for its rank may not have heard of it") {
  Bench bench(2, 1 << 20, Mode::async);
  bench.push(0, 0, 1, RoundCall::broadcast(Rank{0}));
  bench.push(1, 0, 1, RoundCall::broadcast(Rank{0}));
  bench.push(0, 1, 1, Operation::average);  // refused
  bench.push(1, 1, 1);
  REQUIRE(bench.actions.size() == 1);
  REQUIRE(bench.actions[0].applied.size() == 2);
  CHECK(bench.actions[0].applied[0] == Round{1});
  CHECK(bench.actions[0].applied[1] == Round{2});
}

}  // namespace
}  // namespace bps

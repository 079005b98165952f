#include "server/testing/aggregator_harness.h"

namespace bps {
namespace {

using Kind = Action::Kind;

constexpr std::size_t kBudgetOfOne = 64;  // one contribution, as the pool counts it

TEST_CASE("async: deltas wait for the first broadcast, then each is answered at once") {
  Bench bench(3, 1 << 20, Mode::async);
  bench.push(1, 0, 5);
  bench.push(2, 0, 0, RoundCall::broadcast(Rank{0}));
  CHECK(bench.actions.empty());
  CHECK(bench.budget.bytes_in_use() > 0);
  bench.push(0, 0, 100, RoundCall::broadcast(Rank{0}));
  REQUIRE(bench.actions.size() == 3);
  CHECK(first_element(bench.actions[0]) == 105.0f);  // also the root, for whoever needs it later
  CHECK(first_element(bench.actions[1]) == 105.0f);
  CHECK(bench.actions[2].version == 2);
  CHECK(bench.actions[1].payload.bytes.data() == bench.actions[2].payload.bytes.data());
  CHECK(bench.budget.bytes_in_use() == 0);
  const Actions first = bench.actions;
  bench.push(0, 1, 1);  // the first snapshot is still being read
  REQUIRE(bench.actions.size() == 1);
  CHECK(first_element(bench.actions[0]) == 106.0f);
  CHECK(first_element(first[1]) == 105.0f);
  const Actions second = bench.actions;
  bench.unpin(second[0]);
  CHECK(bench.budget.bytes_in_use() == 0);
}

TEST_CASE(
    "async: without budget a delta is refused until there is a value, an answer until a snapshot is sent") {
  Bench bench(3, 0, Mode::async);
  bench.push(1, 0, 5);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::not_ready);
  bench.push(2, 0, 0, RoundCall::broadcast(Rank{0}));
  bench.push(0, 0, 100, RoundCall::broadcast(Rank{0}));
  REQUIRE(bench.actions.size() == 3);
  CHECK(bench.actions[0].kind == Kind::clear_to_send);
  const Actions answers = bench.actions;
  bench.push(1, 0, 5);
  CHECK(bench.actions.empty());
  bench.unpin(answers[1]);
  CHECK(bench.actions.empty());
  bench.unpin(answers[2]);
  REQUIRE(bench.actions.size() == 1);
  CHECK(first_element(bench.actions[0]) == 105.0f);
}

TEST_CASE("async: what is lent is copied first, for nothing could undo half of it") {
  Bench bench(1, 1 << 20, Mode::async);
  bench.push(0, 0, 1, RoundCall::broadcast(Rank{0}));
  CHECK_FALSE(bench.lend(0, 1, 5));
  CHECK(bench.actions.empty());
  bench.push(0, 1, 5);
  REQUIRE(bench.actions.size() == 1);
  CHECK(first_element(bench.actions[0]) == 6.0f);
}

TEST_CASE("async: other ranks' broadcasts are answered once the root has done as many") {
  Bench bench(2, 1 << 20, Mode::async);
  bench.push(1, 0, 0, RoundCall::broadcast(Rank{0}));
  CHECK(bench.actions.empty());
  bench.push(0, 0, 1, RoundCall::broadcast(Rank{0}));
  CHECK(bench.actions.size() == 2);
  bench.push(1, 1, 0, RoundCall::broadcast(Rank{0}));
  CHECK(bench.actions.empty());
  bench.push(0, 1, 9, RoundCall::broadcast(Rank{0}));
  REQUIRE(bench.actions.size() == 2);
  CHECK(first_element(bench.actions[1]) == 9.0f);
}

TEST_CASE("async: a root that leaves fails the broadcasts that wait for it") {
  Bench bench(2, 1 << 20, Mode::async);
  bench.push(1, 0, 0, RoundCall::broadcast(Rank{0}));
  SECTION("the job") {
    bench.aggregator->left(0, bench.actions);
    REQUIRE(bench.actions.size() == 1);
  }
  SECTION("the tensor, which it drops") {
    bench.aggregator->dropped(0, bench.actions);
    bench.aggregator->dropped(0, bench.actions);
    REQUIRE(bench.actions.size() == 1);
    CHECK(bench.actions[0].error.message ==
          "round 0 of layer1.weight (partition 7) can never complete: its root, rank 0, has dropped the "
          "tensor");
    CHECK(bench.actions[0].error.advice == "let the root broadcast before it drops the tensor");
  }
  CHECK(bench.actions[0].kind == Kind::failed);
}

TEST_CASE("async: a broadcast whose root has left fails, also one that comes later or is asked for again") {
  Bench bench(2, 1 << 20, Mode::async);
  SECTION("it comes later") { bench.aggregator->left(0, bench.actions); }
  SECTION("its lane was lost when the root left") {
    bench.push(1, 0, 0, RoundCall::broadcast(Rank{0}));
    bench.aggregator->lost(1, bench.actions);
    bench.aggregator->left(0, bench.actions);
  }
  SECTION("it was being sent again when the root left") {
    bench.push(1, 0, 0, RoundCall::broadcast(Rank{0}));
    bench.aggregator->lost(1, bench.actions);
    bench.begin(1, bench.header(1, 0, RoundCall::broadcast(Rank{0})), 0);
    bench.aggregator->left(0, bench.actions);
    CHECK(bench.actions.empty());
    bench.end(1);
    REQUIRE(bench.actions.size() == 1);
    CHECK(bench.actions[0].kind == Kind::failed);
  }
  CHECK((bench.actions.empty() || bench.actions[0].kind == Kind::failed));
  bench.push(1, 0, 0, RoundCall::broadcast(Rank{0}));
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::failed);
  CHECK(bench.actions[0].error.message.find("rank 0, has left the job") != std::string::npos);
}

TEST_CASE("async: deltas of all ranks fail when no broadcast can come any more") {
  Bench bench(2, kBudgetOfOne, Mode::async);
  bench.push(0, 0, 1);
  CHECK(bench.actions.empty());
  SECTION("the last one waits too") {
    bench.push(1, 0, 2);  // finds no room in the budget
    REQUIRE(bench.actions.size() == 3);
    CHECK(bench.actions[0].kind == Kind::not_ready);
    CHECK(bench.actions[2].contributor == 1);
  }
  SECTION("the last one leaves") {
    bench.aggregator->left(1, bench.actions);
    CHECK(bench.actions.size() == 1);
  }
  SECTION("while the first is being sent again") {
    bench.aggregator->lost(0, bench.actions);
    bench.begin(0, bench.header(0, 0), 1);
    bench.aggregator->left(1, bench.actions);
    CHECK(bench.actions.empty());
    bench.end(0);
    CHECK(bench.actions.size() == 1);
  }
  REQUIRE(!bench.actions.empty());
  CHECK(bench.actions.back().kind == Kind::failed);
  CHECK(bench.actions.back().error.message.find("round 0") != std::string::npos);
  bench.push(0, 0, 1);  // as if the answer was lost
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::failed);
  bench.push(0, 1, 7, RoundCall::broadcast(Rank{0}));
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::answer);
  bench.unpin(Action(bench.actions[0]));
  bench.push(0, 2, 1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(first_element(bench.actions[0]) == 8.0f);
  CHECK(bench.budget.bytes_in_use() == 0);
}

TEST_CASE("async: a refused delta is refused again when its answer was lost") {
  Bench bench(1, 1 << 20, Mode::async);
  bench.push(0, 0, 10, RoundCall::broadcast(Rank{0}));
  bench.push(0, 1, 1, Operation::average);
  bench.aggregator->lost(0, bench.actions);
  bench.push(0, 1, 1, Operation::average);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::failed);
  CHECK(bench.actions[0].round == Round{1});
  bench.push(0, 2, 1);
  bench.push(0, 2, 1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(first_element(bench.actions[0]) == 11.0f);
}

TEST_CASE("async: the staleness bound holds answers back, not deltas; a rank that left does not count") {
  Bench bench(3, 1 << 20, Mode::async, 1);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    bench.push(rank, 0, 0, RoundCall::broadcast(Rank{0}));
  }
  bench.push(0, 1, 1);
  CHECK(bench.actions.size() == 1);
  bench.push(0, 2, 1);
  CHECK(bench.actions.empty());
  bench.push(1, 1, 1);
  REQUIRE(bench.actions.size() == 1);  // the answer contains rank 0's delta
  CHECK(first_element(bench.actions[0]) == 3.0f);
  bench.actions.clear();
  SECTION("the slowest catches up") { bench.push(2, 1, 1); }
  SECTION("the slowest leaves") { bench.aggregator->left(2, bench.actions); }
  SECTION("the slowest drops the tensor") { bench.aggregator->dropped(2, bench.actions); }
  REQUIRE(!bench.actions.empty());
  CHECK(bench.actions[0].contributor == 0);
}

TEST_CASE("async: a delta counts once; average and wrong lengths are refused alone") {
  Bench bench(1, 1 << 20, Mode::async);
  bench.push(0, 0, 10, RoundCall::broadcast(Rank{0}));
  bench.push(0, 1, 1);
  bench.push(0, 1, 1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(first_element(bench.actions[0]) == 11.0f);
  bench.push(0, 2, 1, Operation::average);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::failed);
  bench.begin(0, bench.header(0, 3), 1, 3);
  bench.end(0);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::failed);
  bench.push(0, 4, 1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(first_element(bench.actions[0]) == 12.0f);
  CHECK(bench.actions[0].version == 3);
}

}  // namespace
}  // namespace bps

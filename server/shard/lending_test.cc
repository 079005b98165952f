// Contributions that an aggregator reads in their workers' memory.
#include "server/testing/aggregator_harness.h"

namespace bps {
namespace {

using Kind = Action::Kind;

const std::uint64_t kSlot = BufferPool::class_bytes(Bench::kElements * sizeof(float));

TEST_CASE("lent: what waits takes no memory, and is added in rank order when all are there") {
  Bench bench(3, 0);
  // In rank order 1e8 + 1 - 1e8 is 0 in f32, in any other it is not.
  CHECK(bench.lend(2, 0, -1e8f));
  CHECK(bench.lend(0, 0, 1e8f));
  CHECK(bench.actions.empty());
  CHECK(bench.slots.bytes_in_use() == kSlot);  // its own
  CHECK_FALSE(bench.loans[2]->given_back());
  CHECK_FALSE(bench.loans[0]->given_back());
  CHECK(bench.lend(1, 0, 1));
  REQUIRE(bench.actions.size() == 3);
  CHECK(first_element(bench.actions[2]) == 0.0f);
  CHECK(bench.actions[2].weight == 3);
  CHECK(bench.slots.bytes_in_use() == kSlot);
  for (const auto& loan : bench.loans) {
    CHECK(loan->given_back());
  }
}

TEST_CASE("lent: many inputs, in several passes") {
  const std::uint32_t n = GENERATE(1u, 2u, 16u, 17u, 40u);
  Bench bench(n, 0);
  for (std::uint32_t i = n; i-- > 0;) {
    CHECK(bench.lend(i, 0, static_cast<float>(i + 1), false, false, Operation::average));
  }
  REQUIRE(bench.actions.size() == n);
  CHECK(first_element(bench.actions[0]) == static_cast<float>(n + 1) / 2);
}

TEST_CASE("lent and sent contributions make one sum") {
  Bench bench(4);
  SECTION("the first is sent") {
    CHECK(bench.lend(3, 0, 8));
    bench.push(0, 0, 1);
    CHECK(bench.lend(1, 0, 2));
    CHECK_FALSE(bench.loans[1]->given_back());
    CHECK(bench.begin(2, bench.header(2, 0), 4) == Destination::Kind::lane);
    bench.end(2);
  }
  SECTION("the first is lent; who is next goes through its lane, and takes those before it along") {
    CHECK(bench.lend(0, 0, 1));
    CHECK(bench.begin(1, bench.header(1, 0), 2) == Destination::Kind::lane);
    bench.end(1);
    CHECK(bench.loans[0]->given_back());
    bench.push(3, 0, 8);
    CHECK(bench.budget.bytes_in_use() == kSlot);
    CHECK(bench.lend(2, 0, 4));
  }
  SECTION("what waits in the budget does not wait longer than it must") {
    bench.push(2, 0, 4);
    CHECK(bench.lend(0, 0, 1));
    CHECK(bench.budget.bytes_in_use() == kSlot);
    CHECK(bench.lend(1, 0, 2));
    CHECK(bench.budget.bytes_in_use() == 0);
    CHECK(bench.loans[0]->given_back());
    CHECK(bench.lend(3, 0, 8));
  }
  REQUIRE(bench.actions.size() == 4);
  CHECK(first_element(bench.actions[3]) == 15.0f);
  CHECK(bench.budget.bytes_in_use() == 0);
}

TEST_CASE("lent: what is scarce is added in its turn, and else not taken") {
  Bench bench(3, 0);
  CHECK_FALSE(bench.lend(1, 0, 2, true));
  CHECK(bench.actions.empty());
  CHECK(bench.lend(0, 0, 1, true));
  CHECK(bench.loans[0]->given_back());
  CHECK(bench.lend(1, 0, 2, true));
  CHECK(bench.lend(2, 0, 4, true));
  REQUIRE(bench.actions.size() == 3);
  CHECK(first_element(bench.actions[0]) == 7.0f);
}

TEST_CASE("lent: what is not wanted is given back and answered as usual") {
  Bench bench(2);
  CHECK(bench.lend(0, 0, 1));
  SECTION("sent twice") {
    bench.lose(0);
    CHECK(bench.lend(0, 0, 1));
    CHECK(bench.lend(0, 0, 1));
    CHECK(bench.actions.empty());
  }
  SECTION("of a round that is not open") {
    CHECK(bench.lend(1, 5, 1));
    REQUIRE(bench.actions.size() == 1);
    CHECK(bench.actions[0].kind == Kind::failed);
  }
  SECTION("of a round that is over") {
    CHECK(bench.lend(1, 0, 1));
    bench.lose(1);
    CHECK(bench.lend(1, 0, 1));
    REQUIRE(bench.actions.size() == 1);
    CHECK(first_element(bench.actions[0]) == 2.0f);
    return;
  }
  SECTION("another operation: the round fails, and gives back all that was lent") {
    CHECK(bench.lend(1, 0, 1, false, false, Operation::max));
    REQUIRE(bench.actions.size() == 2);
    CHECK(bench.actions[0].kind == Kind::failed);
    CHECK(bench.actions[1].kind == Kind::failed);
    CHECK(bench.loans[0]->given_back());
    CHECK(bench.loans[1]->given_back());
    return;
  }
  CHECK(bench.lend(1, 0, 1));
  REQUIRE(bench.actions.size() == 2);
  CHECK(first_element(bench.actions[0]) == 2.0f);
}

TEST_CASE("lent: with its lane a contribution is gone, and comes again") {
  Bench bench(2);
  CHECK(bench.lend(0, 0, 1));
  const auto old = bench.loans[0];
  SECTION("the server hears of it in time") {
    bench.lose(0);
    CHECK(old->given_back());
    CHECK(bench.lend(1, 0, 2));
    CHECK(bench.actions.empty());
  }
  SECTION("the server hears of it later") {
    old->withdraw();
    CHECK(bench.lend(1, 0, 2));
    CHECK(bench.actions.empty());
    CHECK(old->given_back());
    bench.lose(0);
  }
  CHECK(bench.lend(0, 0, 1));
  REQUIRE(bench.actions.size() == 2);
  CHECK(first_element(bench.actions[0]) == 3.0f);
}

TEST_CASE("lent: a sum that was spoiled while it was added up starts over from what is still lent") {
  Bench bench(3);
  CHECK(bench.lend(0, 0, 1));
  CHECK(bench.lend(1, 0, 2, false, true));
  CHECK(bench.lend(2, 0, 4));
  CHECK(bench.actions.empty());
  CHECK(bench.loans[1]->given_back());
  CHECK_FALSE(bench.loans[0]->given_back());
  CHECK_FALSE(bench.loans[2]->given_back());
  bench.lose(1);
  CHECK(bench.lend(1, 0, 2));
  REQUIRE(bench.actions.size() == 3);
  CHECK(first_element(bench.actions[1]) == 7.0f);
}

TEST_CASE("a spoiled sum asks again for what it had added before") {
  Bench bench(3);
  bench.push(0, 0, 1);
  CHECK(bench.lend(1, 0, 2, false, true));
  SECTION("the spoiler came before the last, which was sent") {
    bench.push(2, 0, 4);
    REQUIRE(bench.actions.size() == 2);
    CHECK(bench.budget.bytes_in_use() == kSlot);  // the one that was sent is kept
  }
  SECTION("the last was lent") {
    CHECK(bench.lend(2, 0, 4));
    REQUIRE(bench.actions.size() == 2);
    CHECK_FALSE(bench.loans[2]->given_back());
  }
  CHECK(bench.actions[0].kind == Kind::not_ready);
  CHECK(bench.actions[0].contributor == 0);
  CHECK(bench.actions[1].kind == Kind::clear_to_send);
  CHECK(bench.actions[1].contributor == 0);
  bench.lose(1);
  bench.push(0, 0, 1);
  CHECK(bench.actions.empty());
  CHECK(bench.lend(1, 0, 2));
  REQUIRE(bench.actions.size() == 3);
  CHECK(first_element(bench.actions[0]) == 7.0f);
  CHECK(bench.budget.bytes_in_use() == 0);
}

TEST_CASE("a spoiled sum without budget refuses what came through a lane") {
  Bench bench(2, 0);
  CHECK(bench.lend(0, 0, 1, false, true));
  bench.push(1, 0, 2);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::not_ready);
  CHECK(bench.actions[0].contributor == 1);
  bench.lose(0);
  CHECK(bench.lend(0, 0, 1));
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::clear_to_send);
  bench.push(1, 0, 2);
  REQUIRE(bench.actions.size() == 2);
  CHECK(first_element(bench.actions[0]) == 3.0f);
}

TEST_CASE("one that was lent is gone while the next one is arriving on its lane") {
  Bench bench(2, GENERATE(std::size_t{0}, std::size_t{1} << 20));
  const bool room = bench.budget.limit_bytes() > 0;
  CHECK(bench.lend(0, 0, 1));
  CHECK(bench.begin(1, bench.header(1, 0), 2) == Destination::Kind::lane);
  bench.lose(0);
  bench.end(1);
  CHECK(bench.actions.size() == (room ? 0 : 1));
  CHECK(bench.lend(0, 0, 1));
  if (!room) {
    REQUIRE(bench.actions.size() == 1);
    CHECK(bench.actions[0].kind == Kind::clear_to_send);
    bench.push(1, 0, 2);
  }
  REQUIRE(bench.actions.size() == 2);
  CHECK(first_element(bench.actions[0]) == 3.0f);
}

TEST_CASE("lent while the slot is still being read: the first waits, without a copy") {
  Bench bench(1, 0);
  bench.push(0, 0, 1);
  const Action first = bench.actions.at(0);
  bench.push(0, 1, 2);
  const Action second = bench.actions.at(0);
  SECTION("not scarce") {
    CHECK(bench.lend(0, 2, 3));
    CHECK(bench.actions.empty());
    CHECK(first_element(first) == 1.0f);
    bench.unpin(first);
  }
  SECTION("scarce") {
    CHECK_FALSE(bench.lend(0, 2, 3, true));
    bench.push(0, 2, 3);
    REQUIRE(bench.actions.size() == 1);
    CHECK(bench.actions[0].kind == Kind::not_ready);
    bench.actions.clear();
    bench.unpin(first);
    REQUIRE(bench.actions.size() == 1);
    CHECK(bench.actions[0].kind == Kind::clear_to_send);
    CHECK(bench.lend(0, 2, 3, true));
  }
  REQUIRE(bench.actions.size() == 1);
  CHECK(first_element(bench.actions[0]) == 3.0f);
  CHECK(first_element(second) == 2.0f);
}

TEST_CASE("lent while the slot is still being read: who comes after it is not asked before there is room") {
  Bench bench(2, 0);
  bench.push(0, 0, 1);
  bench.push(1, 0, 1);
  const Actions first = bench.actions;
  bench.push(0, 1, 1);
  bench.push(1, 1, 1);
  CHECK(bench.lend(0, 2, 3));
  bench.push(1, 2, 4);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::not_ready);
  bench.actions.clear();
  bench.unpin(first[0]);
  CHECK(bench.actions.empty());
  bench.unpin(first[1]);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::clear_to_send);
  bench.push(1, 2, 4);
  REQUIRE(bench.actions.size() == 2);
  CHECK(first_element(bench.actions[0]) == 7.0f);
}

TEST_CASE("what is being sent twice is asked for a third time if the sum it was in is spoiled") {
  Bench bench(3);
  bench.push(0, 0, 1);
  bench.lose(0);
  bench.begin(0, bench.header(0, 0), 1);
  CHECK(bench.lend(1, 0, 2, false, true));
  CHECK(bench.lend(2, 0, 4));
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::not_ready);
  bench.end(0);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::clear_to_send);
  bench.lose(1);
  bench.push(0, 0, 1);
  CHECK(bench.lend(1, 0, 2));
  REQUIRE(bench.actions.size() == 3);
  CHECK(first_element(bench.actions[0]) == 7.0f);
}

TEST_CASE("lent: the root of a broadcast") {
  Bench bench(2, 0);
  SECTION("last") {
    bench.push(0, 0, 0, RoundCall::broadcast(Rank{1}));
    CHECK(bench.lend(1, 0, 5, GENERATE(false, true), false, RoundCall::broadcast(Rank{1})));
  }
  SECTION("first") {
    CHECK(bench.lend(1, 0, 5, GENERATE(false, true), false, RoundCall::broadcast(Rank{1})));
    bench.push(0, 0, 0, RoundCall::broadcast(Rank{1}));
  }
  SECTION("withdrawn while it is copied") {
    CHECK(bench.lend(1, 0, 5, false, true, RoundCall::broadcast(Rank{1})));
    bench.push(0, 0, 0, RoundCall::broadcast(Rank{1}));
    CHECK(bench.actions.empty());
    bench.lose(1);
    CHECK(bench.lend(1, 0, 5, false, false, RoundCall::broadcast(Rank{1})));
  }
  REQUIRE(bench.said() == "0 answer 0");
  CHECK(first_element(bench.actions[0]) == 5.0f);
  CHECK(bench.loans[1]->given_back());
  bench.stored(0, 0);
  CHECK(bench.said() == "1 answer 0");
}

TEST_CASE("lent: f16 is widened, added and narrowed") {
  Bench bench(2);
  PartitionShape shape = bench.aggregator->shape();
  shape.dtype = DType::f16;
  shape.elements = 5000;  // more than one block
  bench.recreate(shape);
  const std::vector<std::uint16_t> one(shape.elements, 0x3C00), two(shape.elements, 0x4000);
  for (const auto* values : {&one, &two}) {
    const auto bytes = std::as_bytes(std::span(*values));
    const auto rank = values == &one ? 0u : 1u;
    const auto loan = std::make_shared<TestLoan>(std::vector<std::byte>(bytes.begin(), bytes.end()), false);
    LentPayload payload(loan, 0, loan->bytes(), false);
    CHECK(bench.aggregator->lend(rank, bench.header(rank, 0, Operation::average), payload, bench.actions));
  }
  REQUIRE(bench.actions.size() == 2);
  REQUIRE(bench.actions[0].payload.bytes.size() == shape.elements * 2);
  std::vector<std::uint16_t> got(shape.elements);
  std::memcpy(got.data(), bench.actions[0].payload.bytes.data(), got.size() * 2);
  CHECK(got == std::vector<std::uint16_t>(shape.elements, 0x3E00));  // 1.5
}

}  // namespace
}  // namespace bps

// What a partition does with too little memory.
#include "server/testing/aggregator_harness.h"

namespace bps::aggregator_memory_test {
namespace {

using Kind = Action::Kind;

TEST_CASE("where there is no memory for a second slot, a round waits for the first, and none fails") {
  const std::uint64_t slot = BufferPool::class_bytes(Bench::kElements * sizeof(float));
  const std::size_t budget = GENERATE(std::size_t{0}, std::size_t{1 << 20});
  CAPTURE(budget);
  Bench bench(3, budget);
  bench.slots.set_limit(slot);
  const auto unpin_all = [&] {
    const Actions answers = bench.actions;
    for (const Action& answer : answers)
      if (answer.kind == Kind::answer) bench.unpin(answer);
  };
  for (std::uint32_t rank : {0u, 1u, 2u})
    bench.push(rank, 0, 1);
  REQUIRE(bench.said() == "0 answer 0, 1 answer 0, 2 answer 0");
  unpin_all();
  SECTION("what is sent waits in the budget, or is asked for when the last one begins") {
    bench.push(0, 1, 2);
    CHECK(bench.said() == (budget == 0 ? "0 not_ready 1" : ""));
    bench.push(1, 1, 3);
    CHECK(bench.said() == (budget == 0 ? "1 not_ready 1" : ""));
    // The round before is still there for who asks again.
    bench.push(2, 0, 1);
    CHECK(bench.said() == "2 answer 0");
    unpin_all();
    bench.push(2, 1, 4);
    if (budget == 0) {
      CHECK(bench.said() == "2 not_ready 1, 0 clear_to_send 1");
      bench.push(0, 1, 2);
      CHECK(bench.said() == "1 clear_to_send 1");
      bench.push(1, 1, 3);
      CHECK(bench.said() == "2 clear_to_send 1");
      bench.push(2, 1, 4);
    }
  }
  SECTION("what is lent waits where it is") {
    CHECK(bench.lend(0, 1, 2));
    CHECK(bench.lend(1, 1, 3));
    CHECK(bench.said().empty());
    CHECK(bench.lend(2, 1, 4));
  }
  SECTION("what is scarce cannot wait, and goes the usual way") {
    CHECK_FALSE(bench.lend(0, 1, 2, /*scarce=*/true));
    bench.push(0, 1, 2);
    bench.push(1, 1, 3);
    bench.push(2, 1, 4);
    if (budget == 0) {
      CHECK(bench.said() == "2 not_ready 1, 0 clear_to_send 1");
      CHECK(bench.lend(0, 1, 2, /*scarce=*/true));
      CHECK(bench.said() == "1 clear_to_send 1");
      bench.push(1, 1, 3);
      CHECK(bench.said() == "2 clear_to_send 1");
      bench.push(2, 1, 4);
    }
  }
  SECTION("an answer that is still being read is waited for") {
    bench.lose(2);
    bench.push(2, 0, 1);
    REQUIRE(bench.said() == "2 answer 0");
    const Action again = bench.actions[0];
    CHECK(bench.lend(0, 1, 2));
    CHECK(bench.lend(1, 1, 3));
    CHECK(bench.lend(2, 1, 4));
    CHECK(bench.said().empty());
    CHECK(first_element(again) == 3.0f);
    bench.unpin(again);
  }
  SECTION("so is one that leaves the round to the others") {
    CHECK(bench.lend(0, 1, 2));
    CHECK(bench.lend(1, 1, 7));
    CHECK(bench.said().empty());
    bench.contributors[2].loss = "lost";
    bench.lose(2);
    bench.actions.clear();
    bench.aggregator->died(2, bench.actions);
    REQUIRE(bench.said() == "0 answer 1, 1 answer 1");
    CHECK(first_element(bench.actions[0]) == 9.0f);
    CHECK(bench.slots.bytes_in_use() == slot);
    return;
  }
  REQUIRE(bench.said() == "0 answer 1, 1 answer 1, 2 answer 1");
  CHECK(first_element(bench.actions[0]) == 9.0f);
  CHECK(bench.slots.bytes_in_use() == slot);
}

TEST_CASE("a second slot is taken when its first contribution comes, not when that is asked for") {
  const std::uint64_t slot = BufferPool::class_bytes(Bench::kElements * sizeof(float));
  Bench bench(2);
  for (std::uint32_t rank : {0u, 1u})
    bench.push(rank, 0, 1);
  const Actions answers = bench.actions;
  for (const Action& answer : answers)
    bench.unpin(answer);
  bench.request_to_send(0, 1);
  CHECK(bench.said() == "0 clear_to_send 1");
  CHECK(bench.slots.bytes_in_use() == slot);
  bench.begin(0, bench.header(0, 1), 1);
  CHECK(bench.slots.bytes_in_use() == 2 * slot);
  bench.end(0);
}

// Three ranks of a type whose sum is wider, where the system has no accumulators but the job's reserve.
struct Narrow : Bench {
  explicit Narrow(std::size_t budget_bytes) : Bench(3, budget_bytes) {
    PartitionShape shape = aggregator->shape();
    shape.dtype = DType::i32;
    recreate(shape);
    pools.accumulators.memory().set_limit(pools.accumulators.memory().bytes_in_use());
  }
  RoundPool::Claim other{pools.reserve, pools, 1};
};

TEST_CASE("without accumulators the first contribution stays raw, and the others wait") {
  Narrow bench(1 << 20);
  bench.push(0, 0, 1);
  bench.push(1, 0, 2);
  CHECK(bench.said().empty());
  bench.push(2, 0, 3);
  CHECK(bench.said() == "0 answer 0, 1 answer 0, 2 answer 0");
  CHECK(bench.other.take(true));  // they were all there: it needed none
}

TEST_CASE("the reserve is for a round of which everybody has sent a header, and given back in the end") {
  Narrow bench(/*budget_bytes=*/0);
  const bool is_taken = GENERATE(false, true);
  CAPTURE(is_taken);
  if (is_taken) REQUIRE(bench.other.take(true));
  bench.push(0, 0, 1);
  CHECK(bench.said().empty());
  bench.push(1, 0, 2);
  CHECK(bench.said() == "1 not_ready 0");
  bench.request_to_send(2, 0);
  if (is_taken) {  // it has its turn
    CHECK(bench.said().empty());
    bench.other.give_back();
    bench.pools.accumulators.serve();
    REQUIRE(bench.pools.told == 1);
    bench.actions.clear();
    bench.aggregator->on_memory(bench.actions);
  }
  CHECK(bench.said() == "1 clear_to_send 0");
  CHECK_FALSE(bench.other.take(true));
  SECTION("with the round") {
    bench.push(1, 0, 2);
    CHECK(bench.said() == "2 clear_to_send 0");
    bench.push(2, 0, 3);
    CHECK(bench.said() == "0 answer 0, 1 answer 0, 2 answer 0");
  }
  SECTION("with the job") { bench.aggregator->let_go(); }
  SECTION("with the partition") { bench.aggregator.reset(); }
  SECTION("when the round fails") { bench.aggregator->left(2, bench.actions); }
  CHECK_FALSE(bench.other);
  bench.pools.accumulators.serve();
  CHECK(bench.other);
}

TEST_CASE("whose lane is lost is not announced any more") {
  Narrow bench(/*budget_bytes=*/0);
  bench.push(0, 0, 1);
  bench.request_to_send(1, 0);
  CHECK(bench.said().empty());
  bench.lose(1);
  bench.request_to_send(2, 0);
  CHECK(bench.said().empty());
  CHECK(bench.other.take(true));
}

TEST_CASE(
    "reserved memory: a slot of raw elements and a second one; async a value and a snapshot; slot none") {
  BufferPool slots;
  const auto check = [&](DType dtype, Mode mode, std::uint64_t own, std::uint64_t second) {
    const ReservedBytes reserved = reserved_bytes(dtype, 65536, mode);
    CHECK(reserved.own == own);
    CHECK(reserved.second == second);
    const auto memory = take_memory(slots, dtype, 65536, mode);
    REQUIRE(memory);
    CHECK(slots.bytes_in_use() == own);
  };
  check(DType::f32, Mode::sync, 262144, 262144);
  check(DType::bf16, Mode::sync, 131072, 131072);
  check(DType::u8, Mode::sync, 65536, 65536);
  check(DType::bf16, Mode::async, 262144 + 131072, 0);
  check(DType::bf16, Mode::slot, 0, 0);
  slots.set_limit(262144);
  CHECK_FALSE(take_memory(slots, DType::bf16, 65536, Mode::async));
  CHECK(slots.bytes_in_use() == 0);
}

}  // namespace
}  // namespace bps::aggregator_memory_test

#include "server/testing/aggregator_harness.h"

namespace bps {
namespace {

using Kind = Action::Kind;

// Of four ranks none has been taken yet, and there is room for one: 1 and 2 are asked when 0 has come, 3 when
// 2 is added.
void finish_in_turn(Bench& bench) {
  bench.push(0, 0, 1);
  REQUIRE(bench.actions.size() == 2);
  CHECK(bench.actions[0].contributor == 1);
  CHECK(bench.actions[1].contributor == 2);
  bench.push(2, 0, 4);
  CHECK(bench.actions.empty());
  bench.push(1, 0, 2);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].contributor == 3);
  bench.push(3, 0, 8);
  REQUIRE(bench.actions.size() == 4);
  CHECK(first_element(bench.actions[0]) == 15.0f);
  CHECK(bench.budget.bytes_in_use() == 0);
}

TEST_CASE("a round is answered to all when the last contribution is added") {
  Bench bench(3);
  bench.push(0, 0, 1);
  CHECK(bench.actions.empty());
  bench.push(1, 0, 2);
  CHECK(bench.actions.empty());
  bench.push(2, 0, 4);
  REQUIRE(bench.actions.size() == 3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    CHECK(bench.actions[i].kind == Kind::answer);
    CHECK(bench.actions[i].contributor == i);
    CHECK(bench.actions[i].weight == 3);
    CHECK(first_element(bench.actions[i]) == 7.0f);
  }
}

TEST_CASE("the first goes into the slot, the next through its lane, the others wait in the budget") {
  Bench bench(3);
  CHECK(bench.begin(2, bench.header(2, 0), 1) == Destination::Kind::memory);
  CHECK(bench.budget.bytes_in_use() > 0);
  CHECK(bench.begin(0, bench.header(0, 0), 1) == Destination::Kind::memory);
  bench.end(0);
  CHECK(bench.begin(1, bench.header(1, 0), 1) == Destination::Kind::lane);
  bench.end(1);
  CHECK(bench.actions.empty());
  bench.end(2);
  REQUIRE(bench.actions.size() == 3);
  CHECK(first_element(bench.actions[0]) == 3.0f);
  CHECK(bench.budget.bytes_in_use() == 0);
}

TEST_CASE("average divides by the weight of the contributors") {
  Bench bench(2);
  bench.contributors[1].weight = 3;
  bench.recreate(bench.aggregator->shape());
  bench.push(0, 0, 2, Operation::average);
  bench.push(1, 0, 6, Operation::average);
  REQUIRE(bench.actions.size() == 2);
  CHECK(first_element(bench.actions[0]) == 2.0f);
  CHECK(bench.actions[0].weight == 4);
}

TEST_CASE("what finds no room is refused and asked for in its turn") {
  Bench bench(3, 0);
  bench.push(2, 0, 4);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::not_ready);
  bench.push(1, 0, 2);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::not_ready);
  bench.push(0, 0, 1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::clear_to_send);
  CHECK(bench.actions[0].contributor == 1);
  bench.push(1, 0, 2);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::clear_to_send);
  CHECK(bench.actions[0].contributor == 2);
  bench.push(2, 0, 4);
  REQUIRE(bench.actions.size() == 3);
  CHECK(first_element(bench.actions[2]) == 7.0f);
}

TEST_CASE("with room again, those behind the next are asked too") {
  Bench bench(4, BufferPool::class_bytes(Bench::kElements * sizeof(float)));
  auto taken = bench.budget.allocate(1);
  bench.push(3, 0, 8);
  bench.push(2, 0, 4);
  bench.push(1, 0, 2);
  taken.reset();
  finish_in_turn(bench);
}

TEST_CASE("a request to send is cleared in its turn, or before it where there is room") {
  Bench bench(4, BufferPool::class_bytes(Bench::kElements * sizeof(float)));
  for (const std::uint32_t rank : {3, 2, 1}) {
    bench.request_to_send(rank, 0);
    CHECK(bench.actions.empty());  // the first is not there
  }
  CHECK(bench.budget.bytes_in_use() == 0);
  bench.request_to_send(0, 0);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::clear_to_send);
  CHECK(bench.actions[0].contributor == 0);
  finish_in_turn(bench);
}

TEST_CASE("a request to send far from its turn is not cleared yet, however much room there is") {
  Bench bench(64);
  for (std::uint32_t rank = 1; rank < 64; ++rank) {
    bench.request_to_send(rank, 0);
  }
  bench.push(0, 0, 1);
  CHECK(bench.actions.size() == 16);
  bench.push(1, 0, 1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].contributor == 17);
}

TEST_CASE("a request to send what counts already is answered") {
  Bench bench(2);
  bench.push(0, 0, 1);
  bench.lose(0);
  bench.request_to_send(0, 0);
  CHECK(bench.actions.empty());
  bench.push(1, 0, 2);
  CHECK(bench.actions.size() == 2);
  bench.lose(1);
  bench.request_to_send(1, 0);
  REQUIRE(bench.actions.size() == 1);
  CHECK(first_element(bench.actions[0]) == 3.0f);
}

TEST_CASE("a contribution counts once, however often it is sent") {
  Bench bench(2);
  bench.push(0, 0, 1);
  bench.push(0, 0, 1);
  CHECK(bench.actions.empty());
  bench.push(1, 0, 2);
  REQUIRE(bench.actions.size() == 2);
  CHECK(first_element(bench.actions[0]) == 3.0f);
  bench.push(0, 0, 1);  // the answer was lost
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::answer);
  CHECK(first_element(bench.actions[0]) == 3.0f);
}

TEST_CASE("an aggregate stays unchanged while the next round accumulates") {
  Bench bench(2);
  bench.push(0, 0, 1);
  bench.push(1, 0, 2);
  const Actions round0 = bench.actions;
  bench.push(0, 1, 100);
  bench.push(1, 0, 2);  // has not read its answer yet
  REQUIRE(bench.actions.size() == 1);
  CHECK(first_element(bench.actions[0]) == 3.0f);
  bench.push(1, 1, 200);
  REQUIRE(bench.actions.size() == 2);
  CHECK(first_element(bench.actions[0]) == 300.0f);
  CHECK(first_element(round0[1]) == 3.0f);
}

TEST_CASE("a slot that a connection still reads is not overwritten") {
  Bench bench(2);
  bench.push(0, 0, 1);
  bench.push(1, 0, 2);
  const Actions round0 = bench.actions;
  bench.push(0, 1, 1);
  bench.push(1, 1, 1);
  const Actions round1 = bench.actions;
  bench.push(0, 2, 10);
  bench.push(1, 2, 20);
  CHECK(bench.actions.empty());
  CHECK(first_element(round0[0]) == 3.0f);
  bench.unpin(round0[0]);
  CHECK(bench.actions.empty());
  bench.unpin(round0[1]);
  REQUIRE(bench.actions.size() == 2);
  CHECK(first_element(bench.actions[0]) == 30.0f);
  CHECK(first_element(round1[0]) == 2.0f);
}

TEST_CASE("a busy slot without budget refuses the first and asks for it when the slot is free") {
  Bench bench(1, 0);
  bench.push(0, 0, 1);
  const Actions round0 = bench.actions;
  bench.push(0, 1, 2);
  bench.push(0, 2, 3);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::not_ready);
  bench.actions.clear();
  bench.unpin(round0[0]);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::clear_to_send);
  bench.push(0, 2, 3);
  REQUIRE(bench.actions.size() == 1);
  CHECK(first_element(bench.actions[0]) == 3.0f);
}

TEST_CASE("a worker that runs ahead by a round or is stale is refused alone") {
  Bench bench(2);
  bench.push(0, 1, 1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::failed);
  CHECK(bench.actions[0].error.message ==
        "round 1 of layer1.weight (partition 7): rank 0 is ahead: round 0 is not complete");
  for (std::uint64_t round = 0; round < 2; ++round) {
    bench.push(0, round, 1);
    bench.push(1, round, 1);
    CHECK(bench.actions.size() == 2);
  }
  bench.push(0, 0, 1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::failed);
  bench.push(0, 2, 1);
  bench.push(0, 1, 1);  // acknowledged by its round 2
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::failed);
  bench.push(0, ~std::uint64_t{0}, 1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::failed);
}

TEST_CASE("the highest round number is not the round before the first") {
  Bench bench(1);
  bench.push(0, ~std::uint64_t{0}, 1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::failed);
}

TEST_CASE("operations that differ fail this and every later round for all, naming both ranks") {
  Bench bench(3);
  bench.push(0, 0, 1);
  bench.push(2, 0, 1);
  bench.push(1, 0, 1, Operation::average);
  REQUIRE(bench.actions.size() == 3);
  for (const Action& action : bench.actions) {
    CHECK(action.kind == Kind::failed);
    CHECK(action.error.code == ErrorCode::configuration);
    CHECK(action.error.message ==
          "round 0 of layer1.weight (partition 7): rank 0 calls sum, rank 1 calls average");
  }
  CHECK(bench.budget.bytes_in_use() == 0);
  for (std::uint64_t round = 1; round < 3; ++round) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      bench.push(rank, round, 1);
      REQUIRE(bench.actions.size() == 1);
      CHECK(bench.actions[0].kind == Kind::failed);
      CHECK_THAT(bench.actions[0].error.message,
                 Catch::Contains("round 0") && Catch::Contains("rank 1 calls average"));
    }
  }
  CHECK(bench.budget.bytes_in_use() == 0);
}

TEST_CASE("counts of elements, and types, that differ fail the round for all") {
  Bench bench(2);
  bench.push(0, 0, 1);
  PushPull header = bench.header(1, 0);
  std::string expected = "rank 0 calls sum of 5 elements, rank 1 calls sum of 8";
  SECTION("of elements") { header.count = 8; }
  SECTION("of types") {
    header.dtype = DType::i32;
    expected = "rank 1 pushes i32, declared is f32";
  }
  bench.begin(1, header, 1);
  Actions first = std::move(bench.actions);
  bench.end(1);
  REQUIRE(first.size() == 1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(first[0].error == bench.actions[0].error);
  CHECK(first[0].error.code == ErrorCode::configuration);
  CHECK_THAT(first[0].error.message, Catch::Contains(expected));
}

TEST_CASE("an operation that the elements do not have fails the round for all") {
  Bench bench(2);
  bench.push(0, 0, 1);
  bench.push(1, 0, 1, Operation::bit_and);
  REQUIRE(bench.actions.size() == 2);
  for (const Action& action : bench.actions) {
    CHECK(action.kind == Kind::failed);
    CHECK(action.error.code == ErrorCode::configuration);
    CHECK(action.error.message ==
          "round 0 of layer1.weight (partition 7): rank 1 calls and, which f32 does not have");
  }
}

TEST_CASE("roots that differ fail the round for all") {
  Bench bench(2);
  bench.push(0, 0, 1, RoundCall::broadcast(Rank{0}));
  bench.push(1, 0, 1, RoundCall::broadcast(Rank{1}));
  REQUIRE(bench.actions.size() == 2);
  CHECK(bench.actions[0].error.message ==
        "round 0 of layer1.weight (partition 7): rank 0 calls broadcast from rank 0, rank 1 calls broadcast "
        "from rank 1");
}

TEST_CASE("a root outside the job fails the round; where workers have been lost it may have been one") {
  const auto mode = GENERATE(Mode::sync, Mode::async);
  Bench bench(2, 1 << 20, mode);
  // In a synchronous round not before all have come.
  const auto push = [&] {
    bench.push(0, 0, 1, RoundCall::broadcast(Rank{9}));
    if (mode == Mode::async) return;
    CHECK(bench.actions.empty());
    bench.push(1, 0, 1, RoundCall::broadcast(Rank{9}));
  };
  push();
  REQUIRE(bench.actions.size() == (mode == Mode::async ? 1 : 2));
  CHECK(bench.actions[0].kind == Kind::failed);
  CHECK(bench.actions[0].error.code == ErrorCode::configuration);
  PartitionShape shape = bench.aggregator->shape();
  shape.had_losses = true;
  bench.recreate(shape);
  push();
  REQUIRE(bench.actions.size() == (mode == Mode::async ? 1 : 2));
  CHECK(bench.actions[0].kind == Kind::failed);
  CHECK(bench.actions[0].error.code == ErrorCode::peer_lost);
  CHECK(bench.actions[0].error.message ==
        "round 0 of layer1.weight (partition 7) can never complete: the root of the broadcast is lost: rank "
        "9 is not in the job any more");
}

TEST_CASE("a wrong length or weight fails the round for all, also for those who come later") {
  Bench bench(3);
  bench.push(0, 0, 1);
  SECTION("length") { CHECK(bench.begin(1, bench.header(1, 0), 1, 8) == Destination::Kind::drop); }
  SECTION("weight") {
    PushPull header = bench.header(1, 0);
    header.weight = 5;
    CHECK(bench.begin(1, header, 1) == Destination::Kind::drop);
  }
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].contributor == 0);
  bench.end(1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].contributor == 1);
  bench.push(2, 0, 1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].contributor == 2);
  CHECK(bench.actions[0].error.code == ErrorCode::protocol);
}

TEST_CASE("a round that fails while payloads are arriving answers each once, at its end") {
  Bench bench(4);
  bench.begin(0, bench.header(0, 0), 1);
  bench.begin(3, bench.header(3, 0), 1);
  bench.push(1, 0, 1, Operation::max);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].contributor == 1);
  bench.end(3);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::failed);
  CHECK(bench.budget.bytes_in_use() == 0);
  bench.end(0);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::failed);
}

TEST_CASE("a lane that dies half received leaves no trace") {
  Bench bench(2);
  bench.begin(0, bench.header(0, 0), 1);
  std::memset(bench.places[0].memory, 0xFF, 7);
  bench.begin(1, bench.header(1, 0), 2);
  CHECK(bench.budget.bytes_in_use() > 0);
  bench.aggregator->lost(0, bench.actions);
  bench.aggregator->lost(1, bench.actions);
  CHECK(bench.budget.bytes_in_use() == 0);
  bench.push(1, 0, 2);
  bench.push(0, 0, 1);
  REQUIRE(bench.actions.size() == 2);
  CHECK(first_element(bench.actions[0]) == 3.0f);
}

TEST_CASE("what was whole when its lane died still counts and is answered when asked for again") {
  Bench bench(2);
  bench.push(0, 0, 1);
  bench.aggregator->lost(0, bench.actions);
  bench.push(1, 0, 2);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].contributor == 1);
  bench.push(0, 0, 1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(first_element(bench.actions[0]) == 3.0f);
}

TEST_CASE("broadcast completes when all have come and passes the root's bytes through") {
  Bench bench(3);
  bench.push(2, 0, 0, RoundCall::broadcast(Rank{1}));
  bench.push(1, 0, 42, RoundCall::broadcast(Rank{1}));
  CHECK(bench.actions.empty());
  bench.push(0, 0, 0, RoundCall::broadcast(Rank{1}));
  REQUIRE(bench.said() == "0 answer 0, 2 answer 0");
  CHECK(first_element(bench.actions[0]) == 42.0f);
  CHECK(first_element(bench.actions[1]) == 42.0f);
}

TEST_CASE("the second slot is there only while some are ahead of others") {
  Bench bench(3);
  const std::uint64_t slot = BufferPool::class_bytes(Bench::kElements * sizeof(float));
  const auto unpin_all = [&] {
    const Actions answers = bench.actions;
    for (const Action& answer : answers) {
      if (answer.kind == Kind::answer) bench.unpin(answer);
    }
  };
  for (std::uint32_t rank : {0u, 1u, 2u}) {
    bench.push(rank, 0, 1);
  }
  unpin_all();
  CHECK(bench.slots.bytes_in_use() == slot);
  SECTION("rank 0 is late: the others wait in the budget, and its own goes where the aggregate was") {
    bench.push(2, 1, 1);
    bench.push(1, 1, 1);
    CHECK(bench.slots.bytes_in_use() == slot);
    bench.begin(0, bench.header(0, 1), 1);
    CHECK(bench.slots.bytes_in_use() == slot);
    bench.end(0);
  }
  SECTION("rank 0 is early: both are needed until the last has sent its next one") {
    bench.push(0, 1, 1);
    bench.push(1, 1, 1);
    CHECK(bench.slots.bytes_in_use() == 2 * slot);
    bench.begin(2, bench.header(2, 1), 1);
    CHECK(bench.slots.bytes_in_use() == slot);
    bench.end(2);
  }
  SECTION("as long as a connection reads the aggregate, it stays") {
    bench.push(1, 1, 1);
    bench.lose(2);
    bench.push(2, 0, 1);
    REQUIRE(bench.actions.size() == 1);
    const Action again = bench.actions[0];
    bench.push(2, 1, 1);
    bench.begin(0, bench.header(0, 1), 1);
    CHECK(bench.slots.bytes_in_use() == 2 * slot);
    CHECK(first_element(again) == 3.0f);
    bench.unpin(again);
    CHECK(bench.slots.bytes_in_use() == slot);
    bench.actions.clear();
    bench.end(0);
  }
  REQUIRE(bench.actions.size() == 3);
  CHECK(first_element(bench.actions[0]) == 3.0f);
  unpin_all();
  CHECK(bench.slots.bytes_in_use() == slot);
  // Who has sent the next round does not get the old one any more.
  bench.push(0, 2, 1);
  bench.lose(0);
  bench.push(0, 1, 1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::failed);
  // Nor does who has left keep it.
  bench.push(1, 2, 1);
  bench.aggregator->left(2, bench.actions);
  CHECK(bench.slots.bytes_in_use() == slot);  // one is always there
}

TEST_CASE("a rank that left fails the rounds that need it, naming it") {
  Bench bench(2);
  bench.push(0, 0, 1);
  bench.push(1, 0, 1);
  SECTION("before the round") {
    bench.aggregator->left(1, bench.actions);
    bench.push(0, 1, 1);
  }
  SECTION("during the round") {
    bench.push(0, 1, 1);
    bench.aggregator->left(1, bench.actions);
  }
  bool drops = false;
  SECTION("by a drop before the round") {
    drops = true;
    bench.aggregator->dropped(1, bench.actions);
    bench.push(0, 1, 1);
  }
  SECTION("by a drop during the round") {
    drops = true;
    bench.push(0, 1, 1);
    bench.aggregator->dropped(1, bench.actions);
    bench.aggregator->dropped(1, bench.actions);
  }
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::failed);
  CHECK(bench.actions[0].error.message ==
        std::string("round 1 of layer1.weight (partition 7) can never complete: rank 1 has ") +
            (drops ? "dropped the tensor" : "left the job"));
}

TEST_CASE("a rank that left is the error of every later round, for those that lag behind too") {
  Bench bench(3);
  for (const std::uint32_t rank : {0, 1, 2})
    bench.push(rank, 0, 1);
  bench.push(0, 1, 1);
  bench.aggregator->left(2, bench.actions);
  bench.push(0, 2, 1);  // each fails at once, so this rank runs ahead of the other
  bench.push(0, 3, 1);
  bench.push(1, 1, 1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::failed);
  CHECK(bench.actions[0].error.code == ErrorCode::configuration);
  CHECK(bench.actions[0].error.message ==
        "round 1 of layer1.weight (partition 7) can never complete: rank 2 has left the job");
}

TEST_CASE("a round that a dropper lacks fails when all others have come: each has the round before") {
  Bench bench(3);
  for (const std::uint32_t rank : {0, 1, 2})
    bench.push(rank, 0, 1);
  bench.aggregator->lost(1, bench.actions);  // with its answer
  bench.aggregator->dropped(2, bench.actions);
  bench.push(0, 1, 1);
  CHECK(bench.actions.empty());
  bench.push(1, 0, 1);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::answer);
  CHECK(bench.actions[0].round == Round{0});
  std::vector<std::uint32_t> hear{0, 1};
  SECTION("the last one pushes") { bench.push(1, 1, 1); }
  SECTION("it asks to send") { bench.request_to_send(1, 1); }
  SECTION("it drops the tensor, too") {
    bench.actions.clear();
    bench.aggregator->dropped(1, bench.actions);
    hear = {0};
  }
  SECTION("it dies") {
    bench.actions.clear();
    bench.aggregator->died(1, bench.actions);
    hear = {0};
  }
  SECTION("it leaves the job") {
    bench.actions.clear();
    bench.aggregator->left(1, bench.actions);
    hear = {0};
  }
  REQUIRE(bench.actions.size() == hear.size());
  for (std::size_t i = 0; i < hear.size(); ++i) {
    CHECK(bench.actions[i].kind == Kind::failed);
    CHECK(bench.actions[i].contributor == hear[i]);
    CHECK(bench.actions[i].round == Round{1});
    CHECK(bench.actions[i].error.code == ErrorCode::configuration);
  }
}

TEST_CASE("a partition without elements completes its rounds") {
  Bench bench(2);
  PartitionShape shape = bench.aggregator->shape();
  shape.elements = 0;
  bench.recreate(shape);
  for (std::uint32_t rank : {1u, 0u}) {
    bench.begin(rank, bench.header(rank, 0), 0, 0);
    bench.actions.clear();
    bench.aggregator->end(rank, nullptr, bench.actions);
  }
  CHECK(bench.actions.size() == 2);
}

TEST_CASE("two f16 contributions are received and answered where the first one lies, without accumulators") {
  TestPools pools(/*budget_bytes=*/0);
  const auto contributors = ranks(2);
  PartitionShape shape;
  shape.tensor = "h";
  shape.dtype = DType::f16;
  shape.elements = 33;
  auto aggregator = make_aggregator(shape, contributors, pools.memory());
  const std::vector<std::uint16_t> one(33, 0x3C00);
  PushPull header;
  header.dtype = DType::f16;
  header.count = shape.elements;
  Actions actions;
  const Destination slot = aggregator->begin(0, header, 66, actions);
  REQUIRE(slot.memory != nullptr);
  std::memcpy(slot.memory, one.data(), 66);
  aggregator->end(0, nullptr, actions);
  CHECK(aggregator->begin(1, header, 66, actions).kind == Destination::Kind::lane);
  aggregator->end(1, reinterpret_cast<const std::byte*>(one.data()), actions);
  REQUIRE(actions.size() == 2);
  const std::vector<std::uint16_t> two(33, 0x4000);
  REQUIRE(actions[0].payload.bytes.size() == 66);
  CHECK(std::memcmp(actions[0].payload.bytes.data(), two.data(), 66) == 0);
  CHECK(actions[0].payload.bytes.data() == slot.memory);
  CHECK(pools.accumulators.memory().bytes_in_use() == pools.reserve.bytes());
}

}  // namespace
}  // namespace bps

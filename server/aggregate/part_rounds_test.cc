// Rounds of tensors that have parts: in a partition of one owner they are a reduce or a broadcast, in one of
// several a push_pull, or an all_gather, into which each owner gives its slice.
#include <algorithm>
#include <random>

#include "server/testing/aggregator_harness.h"

namespace bps {
namespace {

using Kind = Action::Kind;
using Catch::Matchers::Contains;

const RoundCall kGather = RoundCall::all_gather();
const RoundCall kScatter = RoundCall::reduce_scatter(Operation::sum);
const RoundCall kExactScatter = RoundCall::reduce_scatter(Operation::sum, true);

// Rank 0 owns two of the five elements, rank 1 none, rank 2 three.
struct Packed : Bench {
  explicit Packed(std::uint32_t n = 3, std::size_t budget_bytes = 1 << 20) : Bench(n, budget_bytes) {
    PartitionShape shape = aggregator->shape();
    shape.owners = {{Rank{0}, 0, 2}, {Rank{2}, 2, 3}};
    recreate(shape);
  }
  static std::size_t elements_of(std::uint32_t rank) { return rank == 0 ? 2 : rank == 2 ? 3 : 0; }
  Destination::Kind begin_slice(std::uint32_t rank, std::uint64_t round, float value) {
    return begin(rank, header(rank, round, kGather), value, elements_of(rank) * sizeof(float));
  }
  void end_slice(std::uint32_t rank) {
    actions.clear();
    if (places[rank].kind == Destination::Kind::memory)
      std::memcpy(places[rank].memory, values[rank].data(), elements_of(rank) * sizeof(float));
    aggregator->end(rank, nullptr, actions);
  }
  void gather(std::uint32_t rank, std::uint64_t round, float value) {
    begin_slice(rank, round, value);
    const Actions first = std::move(actions);
    end_slice(rank);
    actions.insert(actions.begin(), first.begin(), first.end());
  }
  bool lend_slice(std::uint32_t rank, std::uint64_t round, float value) {
    actions.clear();
    const std::vector<float> content(elements_of(rank), value);
    const auto bytes = std::as_bytes(std::span(content));
    loans[rank] = std::make_shared<TestLoan>(std::vector<std::byte>(bytes.begin(), bytes.end()), false);
    LentPayload payload(loans[rank], 0, loans[rank]->bytes(), false);
    return aggregator->lend(rank, header(rank, round, kGather), payload, actions);
  }
  static std::vector<float> values_of(const Action& action) {
    std::vector<float> values(action.payload.bytes.size() / sizeof(float));
    std::memcpy(values.data(), action.payload.bytes.data(), action.payload.bytes.size());
    return values;
  }
  // All three are answered with these.
  void check_answers(std::uint64_t round, float zero, float two) const {
    REQUIRE(actions.size() == 3);
    for (const Action& action : actions) {
      CHECK(action.kind == Kind::answer);
      CHECK(action.round == Round{round});
      CHECK(action.weight == 1);
      CHECK(values_of(action) == std::vector<float>{zero, zero, two, two, two});
    }
  }
};

// Of one owner.
struct Owned : Bench {
  Owned() : Bench(3) {
    PartitionShape shape = aggregator->shape();
    shape.owners = {{Rank{1}, 0, kElements}};
    recreate(shape);
  }
};

TEST_CASE("part rounds: each owner gives its slice, in any order, and all take the whole") {
  Packed bench;
  SECTION("straight into the slot, several at a time") {
    CHECK(bench.begin_slice(2, 0, 7) == Destination::Kind::memory);
    CHECK(bench.begin_slice(0, 0, 5) == Destination::Kind::memory);
    CHECK(bench.places[2].memory == bench.places[0].memory + 2 * sizeof(float));
    CHECK(bench.begin_slice(1, 0, 0) == Destination::Kind::drop);
    bench.end_slice(1);
    bench.end_slice(0);
    CHECK(bench.said().empty());
    bench.end_slice(2);
  }
  SECTION("lent") {
    CHECK(bench.lend_slice(2, 0, 7));
    CHECK(bench.loans[2]->given_back());
    bench.gather(1, 0, 0);
    CHECK(bench.lend_slice(0, 0, 5));
  }
  SECTION("one is lost on the way, and comes again") {
    bench.begin_slice(0, 0, 99);
    bench.lose(0);
    bench.gather(1, 0, 0);
    bench.gather(2, 0, 7);
    bench.gather(0, 0, 5);
  }
  bench.check_answers(0, 5, 7);
  bench.unpin_all();
}

TEST_CASE(
    "part rounds: while the answer of the round before the last is read, slices wait, and then are asked "
    "for") {
  Packed bench(3, 0);  // no budget
  for (const std::uint64_t round : {0, 1}) {
    for (const std::uint32_t rank : {0, 1, 2})
      bench.gather(rank, round, static_cast<float>(10 * round + rank));
    if (round == 1) bench.unpin_all();
    // Of round 0 one answer is still being read.
    if (round == 0) {
      bench.unpin(bench.actions[0]);
      bench.unpin(bench.actions[1]);
    }
  }
  const std::uint32_t pin = 0;
  bench.gather(0, 2, 20);
  CHECK(bench.said() == "0 not_ready 2");
  bench.gather(2, 2, 22);
  CHECK(bench.said() == "2 not_ready 2");
  bench.gather(1, 2, 0);
  CHECK(bench.said().empty());
  bench.actions.clear();
  bench.aggregator->unpin(pin, bench.actions);
  CHECK(bench.said() == "0 clear_to_send 2, 2 clear_to_send 2");
  bench.gather(2, 2, 22);
  bench.gather(0, 2, 20);
  bench.check_answers(2, 20, 22);
  bench.unpin_all();
}

TEST_CASE("part rounds: slices that find the slot in use wait in the budget") {
  Packed bench;
  for (const std::uint64_t round : {0, 1}) {
    for (const std::uint32_t rank : {0, 1, 2})
      bench.gather(rank, round, static_cast<float>(10 * round + rank));
    for (std::size_t i = round == 0 ? 1 : 0; i < 3; ++i)
      bench.unpin(bench.actions[i]);
  }
  bench.gather(0, 2, 20);
  bench.gather(2, 2, 22);
  bench.gather(1, 2, 0);
  CHECK(bench.said().empty());
  bench.actions.clear();
  bench.aggregator->unpin(0, bench.actions);
  bench.check_answers(2, 20, 22);
  bench.unpin_all();
}

TEST_CASE("part rounds: a slice that is still arriving when its round fails harms no later one") {
  Packed bench;
  bench.begin_slice(0, 0, 99);
  // Another length: the round fails.
  bench.begin(2, bench.header(2, 0, kGather), 1, 4);
  bench.end(2);
  CHECK(bench.said() == "2 failed 0");
  bench.gather(1, 0, 0);
  CHECK(bench.said() == "1 failed 0");
  // The next one, too, so that the slot's turn comes again while rank 0 writes into it.
  bench.begin(2, bench.header(2, 1, kGather), 1, 4);
  bench.end(2);
  CHECK(bench.said() == "2 failed 1");
  bench.begin_slice(2, 2, 12);
  CHECK(bench.places[2].kind == Destination::Kind::memory);
  CHECK((bench.places[2].memory < bench.places[0].memory ||
         bench.places[2].memory >= bench.places[0].memory + 5 * sizeof(float)));
  bench.end_slice(2);
  bench.gather(1, 2, 0);
  bench.end_slice(0);
  CHECK(bench.said() == "0 failed 0");
  bench.gather(0, 2, 10);
  bench.check_answers(2, 10, 12);
  bench.unpin_all();
}

TEST_CASE("part rounds: without one of the owners there is no whole") {
  Packed bench;
  bench.gather(0, 0, 5);
  bench.gather(1, 0, 0);
  SECTION("it is lost before it has given") {
    bench.die(2);
    CHECK(bench.said() == "0 failed 0, 1 failed 0");
    CHECK(bench.actions[0].error.code == ErrorCode::peer_lost);
    CHECK_THAT(bench.actions[0].error.message,
               Contains("the owner of a part of the all_gather is lost: it is gone"));
    // And in each later round.
    bench.gather(0, 1, 5);
    bench.gather(1, 1, 0);
    CHECK(bench.said() == "0 failed 1, 1 failed 1");
  }
  SECTION("it is lost after it has given") {
    bench.begin_slice(2, 0, 7);
    bench.end_slice(2);
    bench.check_answers(0, 5, 7);
    bench.unpin_all();
    bench.die(2);
    CHECK(bench.said().empty());
  }
  SECTION("one that owns nothing is lost") {
    bench.die(1);
    bench.gather(2, 0, 7);
    CHECK(bench.said() == "0 answer 0, 2 answer 0");
    bench.unpin_all();
  }
}

TEST_CASE("part rounds: other rounds of the partition are as without parts") {
  Packed bench;
  const RoundCall broadcast = RoundCall::broadcast(Rank{2});
  SECTION("straight into the slot") {
    for (const std::uint32_t rank : {0, 1, 2})
      bench.push(rank, 0, 7, broadcast);
  }
  SECTION("lent") {
    for (const std::uint32_t rank : {0, 1})
      bench.push(rank, 0, 0, broadcast);
    CHECK(bench.lend(2, 0, 7, false, false, broadcast));
  }
  REQUIRE(bench.said() == "0 answer 0, 1 answer 0");
  CHECK(Packed::values_of(bench.actions[0]) == std::vector<float>(5, 7));
  bench.unpin_all();
}

TEST_CASE("part rounds: an owner that was never in the job is named") {
  Bench bench(2);
  PartitionShape shape = bench.aggregator->shape();
  shape.owners = {{Rank{0}, 0, 2}, {Rank{5}, 2, 3}};
  SECTION("a job that has lost some") { shape.had_losses = true; }
  SECTION("a job that has not") {}
  bench.recreate(shape);
  for (const std::uint32_t rank : {0, 1})
    bench.begin(rank, bench.header(rank, 0, kGather), 1, rank == 0 ? 8 : 0), bench.end(rank);
  CHECK(bench.said() == "0 failed 0, 1 failed 0");
  CHECK_THAT(bench.actions[0].error.message, Contains("the owner of a part of the all_gather"));
  CHECK_THAT(bench.actions[0].error.message, Contains("rank 5"));
}

TEST_CASE("part rounds: a partition that moved has a gathered answer from one that keeps it") {
  Packed bench;
  bench.move_here();
  bench.resume_all({3, 2, 3});
  CHECK(bench.said() == "0 fetch 2");
  Retained retained;
  retained.partition = PartitionId{7};
  retained.round = Round{2};
  retained.weight = 1;
  bench.actions.clear();
  const Destination place = bench.aggregator->begin_retained(0, retained, 20);
  REQUIRE(place.kind == Destination::Kind::memory);
  const std::vector<float> kept{1, 2, 3, 4, 5};
  std::memcpy(place.memory, kept.data(), 20);
  bench.aggregator->end_retained(0, bench.actions);
  bench.gather(1, 2, 0);
  REQUIRE(bench.said() == "1 answer 2");
  CHECK(Packed::values_of(bench.actions[0]) == kept);
  bench.unpin_all();
}

TEST_CASE("part rounds: where several own parts, all take the sum of a reduce_scatter") {
  Packed bench;
  std::vector<std::uint32_t> order{0, 1, 2};
  std::uint64_t round = 0;
  do {
    for (const bool is_exact : {true, false}) {
      const RoundCall average = RoundCall::reduce_scatter(Operation::average, is_exact);
      for (const RoundCall& call : {is_exact ? kExactScatter : kScatter, average}) {
        Actions answers;
        for (const std::uint32_t rank : order) {
          bench.push(rank, round, static_cast<float>(3 * rank + 3), call);
          answers.insert(answers.end(), bench.actions.begin(), bench.actions.end());
        }
        REQUIRE(answers.size() == 3);
        for (const Action& action : answers) {
          REQUIRE(action.kind == Kind::answer);
          const float divisor = is_exact && call.operation == Operation::average ? 3 : 1;
          // Without that of the owner, which adds it itself, and divides.
          const float zero = is_exact ? 18 : 15, two = is_exact ? 18 : 9;
          CHECK(Packed::values_of(action) == std::vector<float>{zero / divisor, zero / divisor, two / divisor,
                                                                two / divisor, two / divisor});
          CHECK(action.weight == 3);
        }
        bench.actions = answers;
        bench.unpin_all();
        ++round;
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("part rounds: owners that add themselves get the sum of the others, whatever comes how") {
  Packed bench(4);
  std::mt19937 random(3);
  for (std::uint64_t round = 0; round < 200; ++round) {
    std::vector<std::uint32_t> order{0, 1, 2, 3};
    std::shuffle(order.begin(), order.end(), random);
    Actions answers;
    for (const std::uint32_t rank : order) {
      const float value = static_cast<float>(1 << rank);
      const bool is_lent = random() % 2 == 0;
      const bool is_scarce = is_lent && random() % 2 == 0;
      if (!is_lent || !bench.lend(rank, round, value, is_scarce, false, kScatter))
        bench.push(rank, round, value, kScatter);
      answers.insert(answers.end(), bench.actions.begin(), bench.actions.end());
    }
    REQUIRE(answers.size() == 4);
    for (const Action& action : answers)
      CHECK(Packed::values_of(action) == std::vector<float>{14, 14, 11, 11, 11});
    bench.actions = answers;
    bench.unpin_all();
  }
}

TEST_CASE("part rounds: without an owner there is no reduce_scatter") {
  Packed bench;
  bench.push(0, 0, 1, kScatter);
  bench.push(1, 0, 1, kScatter);
  bench.push(2, 0, 1, kScatter);
  bench.unpin_all();
  // Without an owner nobody goes on, not even those whose part is there.
  bench.push(0, 1, 1, kScatter);
  bench.push(1, 1, 1, kScatter);
  bench.die(2);
  CHECK(bench.said() == "0 failed 1, 1 failed 1");
  CHECK_THAT(bench.actions[0].error.message, Contains("the owner of a part of the reduce_scatter is lost"));
}

TEST_CASE(
    "part rounds: where one owns all, it alone takes the sum, or gives the copy, and the others wait or "
    "end") {
  Owned bench;
  const bool is_exact = GENERATE(false, true);
  std::vector<std::uint32_t> order{0, 1, 2};
  std::rotate(order.begin(), order.begin() + GENERATE(0, 1, 2), order.end());
  for (const std::uint32_t rank : order)
    bench.push(rank, 0, static_cast<float>(rank + 1), is_exact ? kExactScatter : kScatter);
  REQUIRE(bench.said() == "1 answer 0");
  CHECK(first_element(bench.actions[0]) == (is_exact ? 6.0f : 4.0f));
  CHECK(bench.actions[0].weight == 3);
  bench.unpin_all();
  bench.stored(1, 0);
  CHECK(bench.said() == "0 answer 0, 2 answer 0");
  for (const std::uint32_t rank : {2, 1, 0}) {
    bench.begin(rank, bench.header(rank, 1, kGather), 4, rank == 1 ? 20 : 0);
    bench.end(rank);
  }
  REQUIRE(bench.said() == "0 answer 1, 2 answer 1");
  CHECK(first_element(bench.actions[0]) == 4.0f);
  bench.unpin_all();
  bench.stored(0, 1);
  bench.stored(2, 1);
  CHECK(bench.said() == "1 answer 1");
}

TEST_CASE("part rounds: the owner's frame is needed for the sum of the others, too") {
  Owned bench;
  SECTION("it comes last") {
    bench.push(0, 0, 1, kScatter);
    bench.push(2, 0, 3, kScatter);
    OpenState state;
    CHECK(bench.aggregator->open_state(state));
    CHECK(state.absent == std::vector<std::uint32_t>{1});
  }
  SECTION("its lane breaks meanwhile") {
    bench.push(1, 0, 0, kScatter);
    bench.push(0, 0, 1, kScatter);
    bench.lose(1);
    bench.push(2, 0, 3, kScatter);
    CHECK(bench.said().empty());
  }
  SECTION("one of the others withdraws what is added already") {
    bench.push(1, 0, 0, kScatter);
    CHECK(bench.lend(0, 0, 1, false, false, kScatter));
    bench.loans[0]->withdraw();
    bench.push(2, 0, 3, kScatter);
    CHECK(bench.said().empty());
    bench.lose(0);
    bench.push(0, 0, 1, kScatter);
    REQUIRE(bench.said() == "1 answer 0");
    CHECK(first_element(bench.actions[0]) == 4.0f);
    return bench.unpin_all();
  }
  bench.push(1, 0, 0, kScatter);
  REQUIRE(bench.said() == "1 answer 0");
  CHECK(first_element(bench.actions[0]) == 4.0f);
  bench.unpin_all();
}

TEST_CASE("part rounds: an owner to whom nobody else gives anything is told by the weight") {
  Owned bench;
  bench.die(0);
  bench.push(1, 0, 9, kScatter);
  CHECK(bench.said().empty());
  bench.die(2);
  REQUIRE(bench.said() == "1 answer 0");
  CHECK(bench.actions[0].weight == 1);
  CHECK(first_element(bench.actions[0]) == 0.0f);
  bench.unpin_all();
}

TEST_CASE("part rounds: kinds that are alike in a partition are still different calls") {
  Owned bench;
  const RoundCall other =
      GENERATE(RoundCall::reduce(Operation::sum, Rank{1}), RoundCall(Operation::sum), kExactScatter);
  bench.push(0, 0, 1, kScatter);
  bench.begin(1, bench.header(1, 0, other), 2, 20);
  bench.end(1);
  CHECK(bench.said() == "1 failed 0");
  CHECK(bench.actions[0].error.code == ErrorCode::configuration);
  CHECK_THAT(bench.actions[0].error.message, Contains("calls reduce_scatter (sum), rank 1 calls"));
}

TEST_CASE("part rounds: a tensor without parts has none") {
  Bench bench(2);
  const RoundCall call = GENERATE(kGather, kScatter);
  bench.begin(0, bench.header(0, 0, call), 1, 0);
  bench.end(0);
  CHECK(bench.said() == "0 failed 0");
  CHECK_THAT(bench.actions[0].error.message, Contains("on a tensor that has no parts"));
}

}  // namespace
}  // namespace bps

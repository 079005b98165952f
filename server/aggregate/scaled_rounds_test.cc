// Rounds whose contributions are weighted or multiplied (Scale).
#include <algorithm>
#include <limits>

#include "server/aggregate/round_errors.h"
#include "server/testing/aggregator_harness.h"

namespace bps::scaled_rounds_test {
namespace {

using Kind = Action::Kind;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// As a program's weight does.
Scale weight(double value) { return {value, value, 1}; }

void push(Bench& bench, std::uint32_t rank, std::uint64_t round, float value, const Scale& scale,
          const RoundCall& call = Operation::average) {
  PushPull header = bench.header(rank, round, call);
  header.scale = scale;
  bench.begin(rank, header, value);
  Actions first = std::move(bench.actions);
  bench.end(rank);
  first.insert(first.end(), bench.actions.begin(), bench.actions.end());
  bench.actions = std::move(first);
}

}  // namespace

TEST_CASE("scaled: an average divides by the sum of the weights, in whatever order they come") {
  std::vector<std::uint32_t> order{0, 1, 2};
  do {
    Bench bench(3);
    const Scale scales[] = {weight(1), weight(2.5), weight(0)};
    for (std::uint64_t round = 0; round < 2; ++round) {
      for (const std::uint32_t rank : order)
        push(bench, rank, round, static_cast<float>(10 * (rank + 1)), scales[rank]);
      REQUIRE(bench.actions.size() == 3);
      for (const Action& action : bench.actions) {
        CHECK(first_element(action) == 60.0F / 3.5F);
        CHECK(action.weight == 3);
      }
      bench.unpin_all();
    }
    // What a rank said before is forgotten.
    for (const std::uint32_t rank : order)
      bench.push(rank, 2, static_cast<float>(10 * (rank + 1)), Operation::average);
    CHECK(first_element(bench.actions.at(0)) == 20);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("scaled: a sum has prescales of its ranks, and one postscale") {
  Bench bench(3);
  const bool lends = GENERATE(false, true);  // the one that is added last
  const auto call = GENERATE(RoundCall(Operation::sum), RoundCall::reduce(Operation::sum, Rank{1}));
  push(bench, 2, 0, 7, {-1, 1, 0.5}, call);
  push(bench, 0, 0, 3, {4, 1, 0.5}, call);
  if (lends) {
    const std::vector<float> content(Bench::kElements, 5);
    const auto bytes = std::as_bytes(std::span(content));
    const auto loan = std::make_shared<TestLoan>(std::vector<std::byte>(bytes.begin(), bytes.end()), false);
    PushPull header = bench.header(1, 0, call);
    header.scale = {1, 1, 0.5};
    LentPayload payload(loan, 0, loan->bytes(), false);
    bench.actions.clear();
    CHECK(bench.aggregator->lend(1, header, payload, bench.actions));
  } else {
    push(bench, 1, 0, 5, {1, 1, 0.5}, call);
  }
  const auto answer = std::find_if(bench.actions.begin(), bench.actions.end(),
                                   [](const Action& action) { return action.contributor == 1; });
  REQUIRE(answer != bench.actions.end());
  CHECK(first_element(*answer) == 5);
}

TEST_CASE("scaled: one rank alone is scaled, too") {
  Bench bench(1);
  push(bench, 0, 0, 3, {2, 1, 10}, Operation::sum);
  CHECK(first_element(bench.actions.at(0)) == 60);
  push(bench, 0, 1, 3, weight(4));
  CHECK(first_element(bench.actions.at(0)) == 3);
}

TEST_CASE("scaled: who is lost before it has given all has no weight") {
  Bench bench(3);
  push(bench, 0, 0, 10, weight(1));
  push(bench, 2, 0, 40, weight(3));
  bench.die(1);
  REQUIRE(bench.actions.size() == 2);
  CHECK(first_element(bench.actions[0]) == 32.5F);
}

TEST_CASE("scaled: what cannot be used fails the round for all, which names the rank, and no later one") {
  struct Bad {
    Scale scale;
    RoundCall call;
    const char* says;
  };
  const Bad bad =
      GENERATE(Bad{weight(-1), Operation::average, "what rank 1 gives has a weight of -1"},
               Bad{weight(kNan), Operation::average, "has a weight of nan"},
               Bad{weight(kInfinity), Operation::average, "has a weight of inf"},
               Bad{weight(1e39), Operation::average, "has a weight of 1e+39"},
               Bad{{kNan, 1, 1}, Operation::sum, "is multiplied with nan"},
               Bad{{1e39, 1, 1}, Operation::sum, "is multiplied with 1e+39"},
               Bad{{1, 1, kNan}, Operation::sum, "and the result with nan"},
               Bad{{1, 1, 1e39}, Operation::average, "and the result with 1e+39"},
               Bad{{2, 1, 1}, Operation::max, "is scaled, which only sums and averages of floats can be"},
               Bad{{2, 1, 1}, RoundCall::broadcast(Rank{0}), "is scaled, which only sums"});
  Bench bench(2);
  const bool is_first = GENERATE(false, true);
  if (!is_first) bench.push(0, 0, 1, bad.call);
  push(bench, 1, 0, 1, bad.scale, bad.call);
  Actions said = std::move(bench.actions);
  if (is_first) bench.push(0, 0, 1, bad.call);
  if (is_first) said.insert(said.end(), bench.actions.begin(), bench.actions.end());
  bench.actions = said;
  REQUIRE(bench.actions.size() == 2);
  for (const Action& action : bench.actions) {
    CHECK(action.kind == Kind::failed);
    CHECK(action.error.code == ErrorCode::invalid_argument);
    CHECK_THAT(action.error.message, Catch::Contains(bad.says) && Catch::Contains("rank 1"));
  }
  bench.push(0, 1, 1);
  bench.push(1, 1, 2);
  CHECK(first_element(bench.actions.at(0)) == 3);
}

TEST_CASE("scaled: what cannot be used and is lost before it is whole fails nothing") {
  Bench bench(3);
  PushPull header = bench.header(0, 0, Operation::average);
  header.scale = weight(-1);
  bench.begin(0, header, 7);
  push(bench, 2, 0, 40, weight(3));
  push(bench, 1, 0, 10, weight(1));
  CHECK(bench.actions.empty());
  bench.die(0);
  REQUIRE(bench.actions.size() == 2);
  CHECK(first_element(bench.actions[0]) == 32.5F);
}

// In whatever order they come.
TEST_CASE("scaled: different postscales are noticed also beside a scale that cannot be used") {
  Bench bench(3);
  const std::uint32_t bad = GENERATE(0U, 1U, 2U);
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    push(bench, rank, 0, 1, rank == bad ? Scale{kNan, 1, 1} : Scale{1, 1, rank + 2.0}, Operation::sum);
  REQUIRE(!bench.actions.empty());
  for (const Action& action : bench.actions)
    CHECK(action.error.code == ErrorCode::configuration);
}

// Else one that gives several in a row is out of step with one that is late.
TEST_CASE("scaled: a round that fails by its scales ends when all have come") {
  Bench bench(2);
  for (std::uint64_t round = 0; round < 3; ++round) {
    push(bench, 0, round, 1, weight(-1));
    CHECK(bench.actions.empty());
    bench.push(1, round, 1, Operation::average);
    REQUIRE(bench.actions.size() == 2);
    for (const Action& action : bench.actions)
      CHECK(action.error.code == ErrorCode::invalid_argument);
  }
}

TEST_CASE("scaled: weights that add up to nothing fail the round for all") {
  Bench bench(2);
  push(bench, 0, 0, 1, weight(0));
  push(bench, 1, 0, 1, weight(0));
  REQUIRE(bench.actions.size() == 2);
  for (const Action& action : bench.actions) {
    CHECK(action.kind == Kind::failed);
    CHECK(action.error.message ==
          "round 0 of layer1.weight (partition 7): the weights of the average add up to 0");
  }
  bench.actions.clear();
  for (const std::uint32_t rank : {0, 1}) {  // nor does a call without elements go well
    PushPull header = bench.header(rank, 1, Operation::average);
    header.scale = weight(0);
    header.count = 0;
    const Actions first = std::move(bench.actions);
    bench.begin(rank, header, 1, 0);
    bench.end(rank);
    bench.actions.insert(bench.actions.begin(), first.begin(), first.end());
  }
  REQUIRE(bench.actions.size() == 2);
  CHECK(bench.actions[1].kind == Kind::failed);
  push(bench, 0, 2, 1, weight(0));
  push(bench, 1, 2, 5, weight(2));
  CHECK(first_element(bench.actions.at(0)) == 5);
}

TEST_CASE("scaled: ranks that multiply the result with different factors call different things") {
  Bench bench(2);
  push(bench, 0, 0, 1, {1, 1, 2}, Operation::sum);
  push(bench, 1, 0, 1, {1, 1, 3}, Operation::sum);
  REQUIRE(bench.actions.size() == 2);
  CHECK(bench.actions[0].error.code == ErrorCode::configuration);
  CHECK_THAT(bench.actions[0].error.message,
             Catch::Contains("rank 0 calls sum with postscale 2, rank 1 calls sum with postscale 3"));
}

TEST_CASE("scaled: not in an asynchronous tensor") {
  Bench bench(1, 1 << 20, Mode::async);
  bench.push(0, 0, 0, RoundCall::broadcast(Rank{0}));
  push(bench, 0, 1, 1, {2, 1, 1}, Operation::sum);
  REQUIRE(bench.actions.size() == 1);
  CHECK_THAT(bench.actions[0].error.message, Catch::Contains("is scaled"));
}

TEST_CASE("scaled: what cannot be used in a call on a group names the group and the call") {
  PartitionShape shape;
  shape.tensor = "bps.calls/world/12/f32/4096/0";
  const std::vector<Contributor> contributors(1);
  const RoundErrors errors(shape, contributors);
  CHECK_THAT(errors.scale(0, Round{3}, 17, "has a weight of -1").message,
             Catch::StartsWith("group 'world': call number 17: what rank 0"));
  CHECK(errors.no_divisor(Round{3}, 17, 0).message ==
        "group 'world': call number 17: the weights of the average add up to 0");
  CHECK_THAT(errors.overflow(Round{3}, 17).message,
             Catch::StartsWith("group 'world': call number 17: the sum"));
  CHECK_THAT(errors.overflow(Round{3}, 0).message, Catch::StartsWith("round 3 of bps.calls/"));
}

}  // namespace bps::scaled_rounds_test

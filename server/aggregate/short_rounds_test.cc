// Rounds of calls that are shorter than their tensor, in a partition in the midst of it.
#include <algorithm>
#include <numeric>
#include <random>

#include "proto/base/call_names.h"
#include "server/testing/aggregator_harness.h"

namespace bps::short_rounds_test {
namespace {

using Kind = Action::Kind;

constexpr std::uint64_t kBegin = 10;  // elements before it

std::size_t elements_of(std::uint64_t count) {
  return static_cast<std::size_t>(std::clamp<std::uint64_t>(count, kBegin, kBegin + Bench::kElements) -
                                  kBegin);
}

struct Short : Bench {
  explicit Short(std::uint32_t n, std::size_t budget_bytes = 1 << 20) : Bench(n, budget_bytes) {
    PartitionShape shape = aggregator->shape();
    shape.begin = kBegin;
    recreate(shape);
  }
  std::uint64_t bytes(std::uint32_t rank, std::uint64_t count, const RoundCall& call) const {
    return call.gives(call.root == Rank{rank}) ? elements_of(count) * sizeof(float) : 0;
  }
  PushPull header_of(std::uint32_t rank, std::uint64_t round, std::uint64_t count,
                     const RoundCall& call) const {
    PushPull short_one = header(rank, round, call);
    short_one.count = count;
    return short_one;
  }
  // What was said before, too.
  void give(std::uint32_t rank, std::uint64_t round, std::uint64_t count, const RoundCall& call) {
    Actions all = std::move(actions);
    begin(rank, header_of(rank, round, count, call), value_of(rank), bytes(rank, count, call));
    all.insert(all.end(), actions.begin(), actions.end());
    end_short(rank, bytes(rank, count, call));
    actions.insert(actions.begin(), all.begin(), all.end());
  }
  // With a lane's buffer that is no longer than the contribution.
  void end_short(std::uint32_t rank, std::uint64_t bytes) {
    actions.clear();
    std::vector<float> lane(values[rank].begin(),
                            values[rank].begin() + static_cast<long>(bytes / sizeof(float)));
    if (places[rank].kind == Destination::Kind::memory && bytes > 0)
      std::memcpy(places[rank].memory, lane.data(), bytes);
    const bool is_lane = places[rank].kind == Destination::Kind::lane && bytes > 0;
    aggregator->end(rank, is_lane ? reinterpret_cast<const std::byte*>(lane.data()) : nullptr, actions);
  }
  static float value_of(std::uint32_t rank) { return static_cast<float>(1 << rank); }
  static std::vector<float> values_in(const Action& action) {
    std::vector<float> values(action.payload.bytes.size() / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), action.payload.bytes.data(), action.payload.bytes.size());
    return values;
  }
};

TEST_CASE("short rounds: each has the elements of its call, whatever the one before had") {
  constexpr std::uint32_t kRanks = 3;
  std::mt19937 random(7);
  // No room for two that wait, as well as room for all.
  Short bench(kRanks, GENERATE(std::size_t{1 << 20}, Bench::kElements * sizeof(float)));
  if (GENERATE(false, true)) {
    PartitionShape shape = bench.aggregator->shape();
    shape.owners = {{Rank{0}, 0, 2}, {Rank{2}, 2, 3}};
    bench.recreate(shape);
  }
  const std::uint64_t counts[] = {0, kBegin, kBegin + 1, kBegin + 3, kBegin + 5, kBegin + 90};
  const RoundCall calls[] = {Operation::sum, Operation::max, RoundCall::broadcast(Rank{1}),
                             RoundCall::reduce(Operation::sum, Rank{2})};
  std::vector<std::uint32_t> order(kRanks);
  std::iota(order.begin(), order.end(), 0U);
  for (std::uint64_t round = 0; round < 400; ++round) {
    const std::uint64_t count = counts[random() % std::size(counts)];
    const RoundCall call = calls[random() % std::size(calls)];
    std::shuffle(order.begin(), order.end(), random);
    bench.actions.clear();
    for (const std::uint32_t rank : order)
      bench.give(rank, round, count, call);
    std::vector<bool> is_answered(kRanks);
    for (std::size_t i = 0; i < bench.actions.size(); ++i) {
      const Action action = bench.actions[i];
      CHECK(action.round == Round{round});
      if (action.kind == Kind::not_ready) continue;
      if (action.kind == Kind::clear_to_send) {
        bench.give(action.contributor, round, count, call);
        continue;
      }
      REQUIRE(action.kind == Kind::answer);
      is_answered[action.contributor] = true;
      const bool takes = call.takes(call.root == Rank{action.contributor});
      const float expected = call.is_broadcast() ? 2 : call.operation == Operation::max ? 4 : 7;
      CHECK(Short::values_in(action) == std::vector<float>(takes ? elements_of(count) : 0, expected));
      if (action.pin != Action::kNoPin) bench.unpin(action);
      if (takes && call.is_confirmed()) {
        const Actions all = std::move(bench.actions);
        bench.stored(action.contributor, round);
        bench.actions.insert(bench.actions.begin(), all.begin(), all.end());
      }
    }
    REQUIRE(std::count(is_answered.begin(), is_answered.end(), true) == kRanks);
  }
}

// Nor does it hold room or accumulators that others need, or ask anybody twice.
TEST_CASE("short rounds: one that is over before the partition begins needs nothing") {
  Short bench(3, 1);
  PartitionShape shape = bench.aggregator->shape();
  shape.dtype = DType::f16;
  bench.recreate(shape);
  const RoundCall call = GENERATE(RoundCall(Operation::average), RoundCall::broadcast(Rank{1}));
  for (const std::uint32_t rank : {1, 0, 2}) {
    CHECK(bench.pools.accumulators.memory().bytes_in_use() == BufferPool::class_bytes(1 << 10));
    bench.actions.clear();
    PushPull header = bench.header_of(rank, 0, kBegin, call);
    header.rendezvous = rank == 1;
    bench.begin(rank, header, 1, 0);
    bench.end_short(rank, 0);
    if (rank == 2) break;
    CHECK(bench.actions.empty());
  }
  // A root waits until the others have stored it.
  CHECK(bench.said() ==
        (call.is_broadcast() ? "0 answer 0, 2 answer 0" : "0 answer 0, 1 answer 0, 2 answer 0"));
}

TEST_CASE("short rounds: ranks that call different lengths call different things") {
  Short bench(2);
  bench.give(0, 0, kBegin + 2, Operation::sum);
  bench.give(1, 0, kBegin + 3, Operation::sum);
  REQUIRE(bench.actions.size() == 2);
  for (const Action& action : bench.actions) {
    CHECK(action.error.code == ErrorCode::configuration);
    CHECK_THAT(action.error.message,
               Catch::Contains("rank 0 calls sum of 12 elements, rank 1 calls sum of 13"));
  }
}

// Also where their elements in this partition are the same.
TEST_CASE("short rounds: a length that ends before the partition is one all the same") {
  Short bench(2);
  bench.give(0, 0, 3, Operation::sum);
  bench.give(1, 0, 0, Operation::sum);
  REQUIRE(bench.actions.size() == 2);
  CHECK(bench.actions[0].error.code == ErrorCode::configuration);
}

// Calls without names: what meets in a round may be of one length and yet of two calls.
TEST_CASE("short rounds: another number, or another whole length, is another call") {
  Short bench(2);
  const bool is_number = GENERATE(true, false);
  for (const std::uint32_t rank : {0, 1}) {
    PushPull header = bench.header_of(rank, 0, kBegin + 2, Operation::sum);
    header.number = is_number ? 7 + rank : 7;
    header.whole = is_number ? 100 : 100 + rank;
    bench.begin(rank, header, 1, bench.bytes(rank, kBegin + 2, Operation::sum));
    const Actions before = std::move(bench.actions);
    bench.end_short(rank, bench.bytes(rank, kBegin + 2, Operation::sum));
    bench.actions.insert(bench.actions.begin(), before.begin(), before.end());
  }
  REQUIRE(bench.actions.size() == 2);
  for (const Action& action : bench.actions) {
    CHECK(action.error.code == ErrorCode::configuration);
    CHECK_THAT(action.error.message, Catch::Contains("rank 0") && Catch::Contains("rank 1"));
    CHECK_THAT(action.error.message, is_number ? Catch::Contains("7") && Catch::Contains("8")
                                               : Catch::Contains("100") && Catch::Contains("101"));
  }
}

TEST_CASE("short rounds: the error of a rank that has left names the call") {
  Short bench(2);
  PartitionShape shape = bench.aggregator->shape();
  shape.tensor = slot_name("world", TensorId{0}, "f32", "4096", 0);
  bench.recreate(shape);
  PushPull header = bench.header_of(0, 0, kBegin + 2, Operation::sum);
  header.number = 17;
  header.whole = kBegin + 2;
  bench.begin(0, header, 1, bench.bytes(0, kBegin + 2, Operation::sum));
  bench.end_short(0, bench.bytes(0, kBegin + 2, Operation::sum));
  bench.aggregator->left(1, bench.actions);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].error.message ==
        "group 'world': call number 17 can never complete: rank 1 has left the job");
}

TEST_CASE("short rounds: not of parts") {
  Short bench(2);
  PartitionShape shape = bench.aggregator->shape();
  shape.owners = {{Rank{0}, 0, 2}, {Rank{1}, 2, 3}};
  bench.recreate(shape);
  const RoundCall call = GENERATE(RoundCall::all_gather(), RoundCall::reduce_scatter(Operation::sum));
  bench.begin(0, bench.header_of(0, 0, kBegin + 2, call), 1, 2 * sizeof(float));
  bench.end_short(0, 2 * sizeof(float));
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].error.code == ErrorCode::configuration);
  CHECK_THAT(bench.actions[0].error.message, Catch::Contains("of 12 elements, which are not all"));
}

TEST_CASE("short rounds: a result that is fetched is as long as its round was") {
  Short bench(2);
  bench.move_here();
  bench.resume(0, 5);
  bench.resume(1, 4);
  REQUIRE(bench.said() == "0 fetch 4");
  Retained result;
  result.round = Round{4};
  result.weight = 2;
  const std::uint64_t elements = GENERATE(0, 3);
  bench.actions.clear();
  const Destination to = bench.aggregator->begin_retained(0, result, elements * sizeof(float));
  REQUIRE(to.memory != nullptr);
  const std::vector<float> kept(elements, 8);
  if (elements > 0) std::memcpy(to.memory, kept.data(), elements * sizeof(float));
  bench.aggregator->end_retained(0, bench.actions);
  bench.actions.clear();
  bench.give(1, 4, kBegin + elements, Operation::sum);
  REQUIRE(bench.said() == "1 answer 4");
  CHECK(Short::values_in(bench.actions[0]) == kept);
}

TEST_CASE("short rounds: a root gives again as many elements as its call has") {
  Short bench(3);
  const RoundCall call = RoundCall::broadcast(Rank{0});
  const std::uint64_t elements = GENERATE(0, 3);
  bench.move_here();
  bench.resume(0, 4, /*kept=*/false);
  bench.resume(1, 4, /*kept=*/false);
  bench.resume(2, 5, /*kept=*/false);  // has stored it
  bench.actions.clear();
  bench.give(1, 4, kBegin + elements, call);
  bench.give(0, 4, kBegin + elements, call);
  const auto answer = std::find_if(bench.actions.begin(), bench.actions.end(), [](const Action& action) {
    return action.kind == Kind::answer && action.contributor == 1;
  });
  REQUIRE(answer != bench.actions.end());
  CHECK(Short::values_in(*answer) == std::vector<float>(elements, 1));
}

}  // namespace
}  // namespace bps::short_rounds_test

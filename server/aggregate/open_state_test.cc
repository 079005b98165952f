// Who an open round waits for, as the aggregators see it.
#include "server/testing/aggregator_harness.h"

namespace bps {
namespace {

using Absent = std::vector<std::uint32_t>;

// "no", or the absent ones: "round 3: 1 2"
std::string open_state(const Bench& bench) {
  OpenState state;
  state.absent = {99};
  if (!bench.aggregator->open_state(state)) return "no";
  std::string text =
      (state.stage == RoundStage::resume ? "resuming " : "round ") + std::to_string(state.round.value) + ":";
  for (const std::uint32_t contributor : state.absent)
    text += " " + std::to_string(contributor);
  return text;
}

TEST_CASE("open state: from the first contribution to the last one, those that have not pushed") {
  Bench bench(3);
  CHECK(open_state(bench) == "no");
  bench.push(1, 0, 1);
  CHECK(open_state(bench) == "round 0: 0 2");
  bench.push(0, 0, 1);
  CHECK(open_state(bench) == "round 0: 2");
  bench.push(2, 0, 1);
  CHECK(open_state(bench) == "no");
  bench.push(2, 1, 1);
  CHECK(open_state(bench) == "round 1: 0 1");
}

TEST_CASE("open state: half a contribution is none, also of a lane that was lost") {
  Bench bench(2);
  bench.push(1, 0, 1);
  bench.begin(0, bench.header(0, 0), 1);
  CHECK(open_state(bench) == "round 0: 0");
  bench.lose(0);
  CHECK(open_state(bench) == "round 0: 0");
  bench.lose(1);  // its contribution is whole
  CHECK(open_state(bench) == "round 0: 0");
}

TEST_CASE("open state: who was refused for lack of room has come, until it is asked") {
  Bench bench(3, 0);
  bench.push(2, 0, 1);
  CHECK(open_state(bench) == "round 0: 0 1");
  bench.request_to_send(1, 0);
  CHECK(open_state(bench) == "round 0: 0");
  bench.push(0, 0, 1);  // both are asked now, or one after the other
  CHECK(open_state(bench).starts_with("round 0: 1"));
}

TEST_CASE("open state: a broadcast waits for everybody, with or without data") {
  Bench bench(3);
  bench.push(1, 0, 0, RoundCall::broadcast(Rank{2}));
  CHECK(open_state(bench) == "round 0: 0 2");
  bench.push(2, 0, 7, RoundCall::broadcast(Rank{2}));
  CHECK(open_state(bench) == "round 0: 0");
}

TEST_CASE("open state: in handoff, those that have not resumed, and who is asked for what others lack") {
  Bench bench(3);
  PartitionShape shape = bench.aggregator->shape();
  shape.moved = true;
  bench.recreate(shape);
  CHECK(open_state(bench) == "resuming 0: 0 1 2");
  bench.aggregator->resume(1, {{}, Round{5}}, bench.actions);
  CHECK(open_state(bench) == "resuming 5: 0 2");
  bench.aggregator->left(2, bench.actions);
  bench.aggregator->gone(2, bench.actions);
  CHECK(open_state(bench) == "resuming 5: 0");
  bench.aggregator->resume(0, {{}, Round{4}}, bench.actions);
  CHECK(open_state(bench) == "resuming 5: 1");
}

TEST_CASE("open state, async: before the first broadcast, whoever could send it") {
  Bench bench(3, 1 << 20, Mode::async);
  CHECK(open_state(bench) == "no");
  bench.push(1, 0, 5);
  CHECK(open_state(bench) == "round 0: 0 2");
  bench.push(2, 0, 0, RoundCall::broadcast(Rank{0}));
  CHECK(open_state(bench) == "round 0: 0");
  bench.push(0, 0, 100, RoundCall::broadcast(Rank{0}));
  CHECK(open_state(bench) == "no");
}

TEST_CASE("open state, async: with a staleness bound, those that are too far behind") {
  Bench bench(3, 1 << 20, Mode::async, 1);
  bench.push(0, 0, 100, RoundCall::broadcast(Rank{0}));
  bench.push(1, 0, 0, RoundCall::broadcast(Rank{0}));
  bench.push(2, 0, 0, RoundCall::broadcast(Rank{0}));
  bench.push(1, 1, 1);
  CHECK(open_state(bench) == "no");
  bench.push(0, 1, 1);
  bench.push(1, 2, 1);
  CHECK(open_state(bench) == "round 2: 2");
  bench.push(2, 1, 1);
  CHECK(open_state(bench) == "no");
}

}  // namespace
}  // namespace bps

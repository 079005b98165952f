// Contributors that are lost for good: the others go on.
#include "server/testing/aggregator_harness.h"

namespace bps {
namespace {

using Kind = Action::Kind;

class ShrinkingBench : public Bench {
 public:
  using Bench::Bench;

  void die(std::uint32_t rank) {
    contributors[rank].loss = "rank " + std::to_string(rank) + " is gone: killed";
    actions.clear();
    aggregator->lost(rank, actions);
    aggregator->died(rank, actions);
  }

  // "0 answer 4 weight 2 value 3, 1 failed 4"
  std::string said() const {
    std::string text;
    for (const Action& action : actions) {
      text += (text.empty() ? "" : ", ") + text_of(action);
      if (action.kind == Kind::answer) text += " weight " + std::to_string(action.weight);
      if (!action.payload.bytes.empty())
        text += " value " + std::to_string(static_cast<int>(first_element(action)));
    }
    return text;
  }
};

}  // namespace

TEST_CASE("shrink: a round goes on without who has sent nothing, and so do the next ones") {
  ShrinkingBench bench(3);
  bench.push(0, 0, 1);
  bench.push(2, 0, 4);
  bench.die(1);
  CHECK(bench.said() == "0 answer 0 weight 2 value 5, 2 answer 0 weight 2 value 5");
  bench.push(2, 1, 8, Operation::average);
  bench.push(0, 1, 2, Operation::average);
  CHECK(bench.said() == "0 answer 1 weight 2 value 5, 2 answer 1 weight 2 value 5");
}

TEST_CASE("shrink: what was whole counts in its round, and in none after it") {
  ShrinkingBench bench(3);
  bench.push(0, 0, 1);  // added
  bench.push(2, 0, 4);  // waits
  bench.die(0);
  bench.die(2);
  CHECK(bench.said().empty());
  bench.push(1, 0, 2);
  CHECK(bench.said() == "1 answer 0 weight 3 value 7");
  bench.push(1, 1, 6, Operation::average);
  CHECK(bench.said() == "1 answer 1 weight 1 value 6");
}

TEST_CASE("shrink: half a contribution is none, also in the slot") {
  ShrinkingBench bench(2);
  CHECK(bench.begin(0, bench.header(0, 0), 1) == Destination::Kind::memory);
  bench.push(1, 0, 2);
  CHECK(bench.said().empty());
  bench.die(0);
  CHECK(bench.said() == "1 answer 0 weight 1 value 2");
  // The lowest who is left comes straight into the slot.
  bench.push(1, 1, 3);
  CHECK(bench.budget.bytes_in_use() == 0);
  CHECK(bench.said() == "1 answer 1 weight 1 value 3");
}

TEST_CASE("shrink: the last in order was all that was missing") {
  ShrinkingBench bench(3);
  bench.push(0, 0, 1, Operation::average);
  bench.push(1, 0, 3, Operation::average);
  bench.die(2);
  CHECK(bench.said() == "0 answer 0 weight 2 value 2, 1 answer 0 weight 2 value 2");
}

TEST_CASE("shrink: one alone, of a narrow type, gets its own bytes") {
  ShrinkingBench bench(3);
  PartitionShape shape = bench.aggregator->shape();
  shape.dtype = DType::f16;
  bench.recreate(shape);
  bench.die(0);
  bench.die(2);
  const std::vector<std::byte> half(Bench::kElements * 2, std::byte{0x3C});
  const Destination place = bench.aggregator->begin(1, bench.header(1, 0), half.size(), bench.actions);
  REQUIRE(place.memory != nullptr);
  std::memcpy(place.memory, half.data(), half.size());
  bench.aggregator->end(1, nullptr, bench.actions);
  REQUIRE(bench.actions.size() == 1);
  const std::span<const std::byte> answer = bench.actions[0].payload.bytes;
  CHECK(std::vector<std::byte>(answer.begin(), answer.end()) == half);
}

TEST_CASE(
    "shrink: who was refused, or has only requested to send, is not cleared any more; the next one is") {
  ShrinkingBench bench(3, 0);
  bench.push(0, 0, 1);
  bench.request_to_send(1, 0);
  REQUIRE(bench.said() == "1 clear_to_send 0");
  bench.push(2, 0, 4);
  REQUIRE(bench.said() == "2 not_ready 0");
  bench.die(1);
  CHECK(bench.said() == "2 clear_to_send 0");
  bench.push(2, 0, 4);
  CHECK(bench.said() == "0 answer 0 weight 2 value 5, 2 answer 0 weight 2 value 5");
}

TEST_CASE("shrink: what the dead had lent does not count") {
  ShrinkingBench bench(3);
  REQUIRE(bench.lend(0, 0, 1));
  bench.push(1, 0, 2);
  bench.push(2, 0, 4);  // all: added
  CHECK(bench.said() ==
        "0 answer 0 weight 3 value 7, 1 answer 0 weight 3 value 7, 2 answer 0 weight 3 value 7");
  REQUIRE(bench.lend(0, 1, 1));
  bench.push(1, 1, 2);
  bench.lend(2, 1, 4);
  bench.actions.clear();
  ShrinkingBench other(3);
  REQUIRE(other.lend(0, 0, 1));
  REQUIRE(other.lend(2, 0, 4));
  other.die(2);
  other.push(1, 0, 2);
  CHECK(other.said() == "0 answer 0 weight 2 value 3, 1 answer 0 weight 2 value 3");
}

TEST_CASE("shrink: a sum that starts over starts without the dead") {
  ShrinkingBench bench(3);
  bench.push(0, 0, 1);
  bench.push(1, 0, 2);
  bench.die(0);
  CHECK(bench.said().empty());
  REQUIRE(bench.lend(2, 0, 4, false, true));  // withdrawn while it is added
  CHECK(bench.said() == "1 not_ready 0, 1 clear_to_send 0");
  bench.lose(2);
  bench.push(1, 0, 2);
  bench.push(2, 0, 4);
  CHECK(bench.said() == "1 answer 0 weight 2 value 6, 2 answer 0 weight 2 value 6");
}

TEST_CASE("shrink: nobody waits for the dead to have stored an aggregate") {
  ShrinkingBench bench(2);
  bench.push(0, 0, 1);
  bench.push(1, 0, 2);
  for (const Action& action : Actions(bench.actions))
    bench.unpin(action);
  bench.push(0, 1, 3);
  const std::size_t two_slots = bench.slots.bytes_in_use();
  bench.die(1);
  CHECK(bench.said() == "0 answer 1 weight 1 value 3");
  CHECK(bench.slots.bytes_in_use() < two_slots);
}

TEST_CASE("shrink: a broadcast fails without its root's bytes, when all have come") {
  ShrinkingBench bench(3);
  bench.push(1, 0, 0, RoundCall::broadcast(Rank{0}));
  bench.die(0);
  CHECK(bench.said().empty());
  bench.push(2, 0, 0, RoundCall::broadcast(Rank{0}));
  CHECK(bench.said() == "1 failed 0, 2 failed 0");
  CHECK(bench.actions[0].error.code == ErrorCode::peer_lost);
  CHECK(bench.actions[0].error.message ==
        "round 0 of layer1.weight (partition 7) can never complete: the root of the broadcast is lost: rank "
        "0 is "
        "gone: killed");
  bench.push(2, 1, 0, RoundCall::broadcast(Rank{0}));
  bench.push(1, 1, 0, RoundCall::broadcast(Rank{0}));
  CHECK(bench.said() == "1 failed 1, 2 failed 1");
  bench.push(2, 2, 4);
  bench.push(1, 2, 2);
  CHECK(bench.said() == "1 answer 2 weight 2 value 6, 2 answer 2 weight 2 value 6");

  ShrinkingBench whole(2);
  whole.push(0, 0, 5, RoundCall::broadcast(Rank{0}));
  whole.die(0);
  whole.push(1, 0, 0, RoundCall::broadcast(Rank{0}));
  CHECK(whole.said() == "1 answer 0 weight 1 value 5");
}

TEST_CASE("shrink: a handoff does not wait for the dead, whenever they die") {
  ShrinkingBench bench(3);
  bench.move_here();
  bench.resume_all({4, 4});
  bench.die(2);
  CHECK(bench.said() == "0 resumed 4, 1 resumed 4");
  bench.push(0, 4, 1);
  bench.push(1, 4, 2);
  CHECK(bench.said() == "0 answer 4 weight 2 value 3, 1 answer 4 weight 2 value 3");

  bench.move_here();
  bench.die(2);
  bench.resume_all({5, 5});
  CHECK(bench.said() == "0 resumed 5, 1 resumed 5");
}

TEST_CASE("shrink: a round that only the dead had is open again") {
  ShrinkingBench bench(3);
  bench.move_here();
  bench.resume(2, 5);
  bench.resume_all({4, 4});
  REQUIRE(bench.said() == "2 fetch 4");
  const bool has_dropped = GENERATE(false, true);
  if (has_dropped) bench.aggregator->dropped(2, bench.actions);
  bench.die(2);
  CHECK(bench.said() == "0 resumed 4, 1 resumed 4");
  bench.push(0, 4, 1);
  bench.push(1, 4, 2);
  CHECK(bench.said() == "0 answer 4 weight 2 value 3, 1 answer 4 weight 2 value 3");
  // Not if another one has it.
  bench.move_here();
  bench.resume(2, 5);
  bench.resume_all({5, 4});
  CHECK(bench.said() == "0 fetch 4");
}

TEST_CASE("shrink: asynchronous: the bound counts who is there, a lost root is named") {
  ShrinkingBench bench(3, 1 << 20, Mode::async, 0);
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    bench.push(rank, 0, 0, RoundCall::broadcast(Rank{0}));
  for (const Action& action : Actions(bench.actions))
    if (action.pin != Action::kNoPin) bench.unpin(action);
  bench.push(0, 1, 1);
  bench.push(1, 1, 2);
  CHECK(bench.said().empty());
  bench.die(2);
  CHECK(bench.said() == "0 answer 1 weight 1 value 3, 1 answer 1 weight 1 value 3");
  bench.die(0);
  bench.push(1, 2, 0, RoundCall::broadcast(Rank{0}));
  REQUIRE(bench.said() == "1 failed 2");
  CHECK(bench.actions[0].error.code == ErrorCode::peer_lost);
}

}  // namespace bps

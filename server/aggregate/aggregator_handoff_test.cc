// A partition that another server had before.
#include "server/testing/aggregator_harness.h"

namespace bps {
namespace {

using Kind = Action::Kind;

class MovedBench : public Bench {
 public:
  explicit MovedBench(std::uint32_t n, DType dtype = DType::f32, std::size_t elements = kElements)
      : Bench(n) {
    PartitionShape shape = aggregator->shape();
    shape.moved = true;
    shape.dtype = dtype;
    shape.elements = elements;
    recreate(shape);
  }

  void linger(std::uint32_t rank) {
    actions.clear();
    aggregator->left(rank, actions);
  }
  void leave(std::uint32_t rank) {
    linger(rank);
    aggregator->gone(rank, actions);
  }
  Destination begin_retained(std::uint32_t rank, std::uint64_t round, std::uint64_t bytes,
                             const Error& error = {}) {
    Retained header;
    header.round = Round{round};
    header.weight = 3;
    header.error = error;
    return aggregator->begin_retained(rank, header, bytes);
  }
  void end_retained(std::uint32_t rank) {
    actions.clear();
    aggregator->end_retained(rank, actions);
  }
  void retained(std::uint32_t rank, std::uint64_t round, float value) {
    const Destination destination = begin_retained(rank, round, kElements * sizeof(float));
    const std::vector<float> content(kElements, value);
    if (destination.memory != nullptr) {
      std::memcpy(destination.memory, content.data(), content.size() * sizeof(float));
    }
    end_retained(rank);
  }
};

TEST_CASE("moved: nothing happens before all have resumed; then all push the open round") {
  MovedBench bench(3);
  bench.resume(0, 5);
  bench.resume(2, 5);
  CHECK(bench.said().empty());
  bench.resume(1, 5);
  CHECK(bench.said() == "0 resumed 5, 1 resumed 5, 2 resumed 5");
  bench.push(0, 5, 1);
  bench.push(1, 5, 2);
  bench.push(2, 5, 4);
  REQUIRE(bench.said() == "0 answer 5, 1 answer 5, 2 answer 5");
  CHECK(first_element(bench.actions[0]) == 7.0f);
  CHECK(bench.actions[0].weight == 3);
}

TEST_CASE("moved: who has it gives the aggregate that others lack, and they get it unasked") {
  MovedBench bench(4);
  bench.resume(3, 5);
  bench.resume_all({4, 5, 4});
  CHECK(bench.said() == "1 fetch 4");
  bench.retained(1, 4, 9);
  REQUIRE(bench.said() == "0 resumed 5, 0 answer 4, 1 resumed 5, 2 resumed 5, 2 answer 4, 3 resumed 5");
  CHECK(first_element(bench.actions[1]) == 9.0f);
  CHECK(bench.actions[1].weight == 3);
  const Actions first = bench.actions;

  // It is kept like one that was computed here, until all have stored it.
  bench.push(1, 5, 1);
  bench.push(3, 5, 1);
  bench.push(0, 4, 1);
  REQUIRE(bench.said() == "0 answer 4");
  CHECK(first_element(bench.actions[0]) == 9.0f);
  bench.unpin(bench.actions[0]);
  bench.unpin(first[1]);
  bench.push(0, 5, 1);
  bench.unpin(first[4]);
  bench.push(2, 4, 1);
  REQUIRE(bench.said() == "2 answer 4");
  bench.unpin(bench.actions[0]);
  const std::uint64_t two = bench.slots.bytes_in_use();
  bench.push(2, 5, 1);
  REQUIRE(bench.said() == "0 answer 5, 1 answer 5, 2 answer 5, 3 answer 5");
  CHECK(first_element(bench.actions[0]) == 4.0f);
  CHECK(bench.slots.bytes_in_use() == two / 2);
}

TEST_CASE("moved: a push counts as a resume, is refused, and asked for when all have resumed") {
  MovedBench bench(3);
  CHECK(bench.begin(0, bench.header(0, 7), 1) == Destination::Kind::drop);
  bench.end(0);
  CHECK(bench.said() == "0 not_ready 7");
  CHECK_FALSE(bench.lend(1, 7, 1));
  bench.push(1, 7, 1);
  CHECK(bench.said() == "1 not_ready 7");
  bench.resume(2, 7);
  CHECK(bench.said() == "0 resumed 7, 0 clear_to_send 7, 1 resumed 7, 1 clear_to_send 7, 2 resumed 7");
  bench.push(2, 7, 4);
  bench.push(1, 7, 2);
  bench.push(0, 7, 1);
  REQUIRE(bench.said() == "0 answer 7, 1 answer 7, 2 answer 7");
  CHECK(first_element(bench.actions[0]) == 7.0f);
}

TEST_CASE("moved: a request to send waits, and is cleared") {
  MovedBench bench(2);
  PushPull header = bench.header(0, 2);
  header.rendezvous = true;
  bench.begin(0, header, 1, 0);
  bench.end(0);
  CHECK(bench.said().empty());
  bench.resume(1, 2);
  CHECK(bench.said() == "0 resumed 2, 0 clear_to_send 2, 1 resumed 2");
}

TEST_CASE("moved: a push of the round before the open one is answered, not asked for") {
  MovedBench bench(2);
  bench.push(0, 7, 1);
  bench.resume(1, 8);
  CHECK(bench.said() == "1 fetch 7");
  bench.retained(1, 7, 3);
  CHECK(bench.said() == "0 resumed 8, 0 answer 7, 1 resumed 8");
}

TEST_CASE("moved: a push that is half here when the others have resumed is asked for at its end") {
  MovedBench bench(2);
  bench.resume(0, 4);
  bench.begin(0, bench.header(0, 4), 1);
  bench.resume(1, 4);
  CHECK(bench.said() == "0 resumed 4, 1 resumed 4");
  bench.end(0);
  CHECK(bench.said() == "0 not_ready 4, 0 resumed 4, 0 clear_to_send 4");

  MovedBench other(2);
  other.resume(0, 4);
  other.begin(0, other.header(0, 4), 1);
  other.resume(1, 5);
  CHECK(other.said() == "1 fetch 4");
  other.retained(1, 4, 3);
  CHECK(other.said() == "0 resumed 5, 1 resumed 5");
  other.end(0);
  CHECK(other.said() == "0 resumed 5, 0 answer 4");
}

TEST_CASE("moved: a lane that is lost is asked again when it is back, another one at once") {
  MovedBench bench(3);
  bench.resume_all({5, 5, 4});
  CHECK(bench.said() == "0 fetch 4");
  bench.lose(0);
  CHECK(bench.said() == "1 fetch 4");
  REQUIRE(bench.begin_retained(1, 4, Bench::kElements * sizeof(float)).memory != nullptr);
  const std::uint64_t slot = BufferPool::class_bytes(Bench::kElements * sizeof(float));
  CHECK(bench.slots.bytes_in_use() == slot);
  bench.lose(1);
  CHECK(bench.said().empty());
  CHECK(bench.slots.bytes_in_use() == slot);
  bench.lose(2);
  CHECK(bench.said().empty());
  bench.resume(1, 5);
  CHECK(bench.said() == "1 fetch 4");
  bench.resume(0, 5);
  CHECK(bench.said().empty());
  bench.retained(0, 4, 1);  // nobody asked it on this lane
  CHECK(bench.said().empty());
  bench.retained(1, 4, 9);
  CHECK(bench.said() == "0 resumed 5, 1 resumed 5");
  bench.retained(1, 4, 1);  // once more
  CHECK(bench.said().empty());
  bench.resume(2, 4);
  REQUIRE(bench.said() == "2 resumed 5, 2 answer 4");
  CHECK(first_element(bench.actions[1]) == 9.0f);
}

TEST_CASE("moved: a report counts also when its lane is gone") {
  MovedBench bench(2);
  bench.resume(0, 5);
  bench.push(1, 4, 1);
  bench.lose(1);
  CHECK(bench.said().empty());
  bench.retained(0, 4, 2);
  CHECK(bench.said() == "0 resumed 5");
  bench.resume(1, 4);
  CHECK(bench.said() == "1 resumed 5, 1 answer 4");
}

TEST_CASE("moved: who resumes twice is told again where the partition is") {
  MovedBench bench(2);
  bench.resume(0, 3);
  bench.resume(0, 3);
  CHECK(bench.said().empty());
  bench.resume(1, 3);
  bench.lose(0);
  bench.resume(0, 3);
  CHECK(bench.said() == "0 resumed 3");
  bench.push(1, 3, 1);
  bench.push(0, 3, 1);
  bench.lose(0);
  bench.push(1, 4, 1);
  bench.resume(0, 3);
  CHECK(bench.said() == "0 resumed 4, 0 answer 3");
  bench.resume(0, 4);
  CHECK(bench.said() == "0 resumed 4");
  bench.resume(0, 3);
  CHECK(bench.said() == "0 resumed 4, 0 failed 3");
}

TEST_CASE("moved: a partition that was always here can be resumed, too") {
  Bench bench(2);
  bench.aggregator->resume(0, {{}, Round{0}}, bench.actions);
  REQUIRE(bench.actions.size() == 1);
  CHECK(bench.actions[0].kind == Kind::resumed);
  CHECK(bench.actions[0].round == Round{0});
}

TEST_CASE("moved: who names two rounds, or is further behind, breaks a rule; the others go on") {
  MovedBench bench(3);
  bench.resume(0, 5);
  bench.resume(0, 6);
  REQUIRE(bench.said() == "0 failed 6");
  CHECK(bench.actions[0].error.code == ErrorCode::protocol);
  bench.push(0, 4, 1);
  CHECK(bench.said() == "0 failed 4");
  bench.resume(1, 2);
  bench.resume(2, 5);
  REQUIRE(bench.said() == "0 resumed 5, 1 resumed 5, 1 failed 2, 2 resumed 5");
  CHECK(bench.actions[2].error.message ==
        "round 2 of layer1.weight (partition 7): rank 1 is stale: round 5 is under way");
  // It can catch up, failing.
  bench.push(1, 3, 1);
  CHECK(bench.said() == "1 failed 3");
  bench.push(1, 4, 1);
  CHECK(bench.said() == "1 failed 4");
  bench.push(0, 5, 1);
  bench.push(2, 5, 1);
  bench.push(1, 5, 1);
  CHECK(bench.said() == "0 answer 5, 1 answer 5, 2 answer 5");
}

TEST_CASE("moved: a round that has failed elsewhere fails for those who have not heard of it") {
  MovedBench bench(3);
  bench.resume_all({5, 4, 4});
  const bool for_good = GENERATE(false, true);
  const ErrorCode code = for_good ? ErrorCode::configuration : ErrorCode::peer_lost;
  CHECK(bench.begin_retained(0, 4, 0, make_error(code, "they disagree")).memory == nullptr);
  bench.end_retained(0);
  REQUIRE(bench.said() == "0 resumed 5, 1 resumed 5, 1 failed 4, 2 resumed 5, 2 failed 4");
  CHECK(bench.actions[2].error.message == "they disagree");
  bench.push(1, 4, 1);  // it had not begun the round
  CHECK(bench.said() == "1 failed 4");
  CHECK(bench.slots.bytes_in_use() == BufferPool::class_bytes(Bench::kElements * sizeof(float)));
  for (std::uint32_t i = 0; i < 3; ++i)
    bench.push(i, 5, 1);
  CHECK(bench.said() == (for_good ? "2 failed 5" : "0 answer 5, 1 answer 5, 2 answer 5"));
}

TEST_CASE("moved: an aggregate of a wrong length fails the round, naming who sent it") {
  MovedBench bench(2);
  bench.resume_all({5, 4});
  const std::uint64_t bytes = GENERATE(24, 7);
  CHECK(bench.begin_retained(0, 4, bytes).memory == nullptr);
  bench.end_retained(0);
  REQUIRE(bench.said() == "0 resumed 5, 1 resumed 5, 1 failed 4");
  CHECK(bench.actions[2].error.message == "round 4 of layer1.weight (partition 7): rank 0 pushed " +
                                              std::to_string(bytes) + " bytes, the partition has 20");
}

TEST_CASE("moved: a rank that has left counts as resumed") {
  MovedBench bench(3);
  bench.leave(2);
  bench.resume_all({5, 5});
  CHECK(bench.said() == "0 resumed 5, 1 resumed 5");
  bench.push(0, 5, 1);
  CHECK(bench.said() == "0 failed 5");  // it can never complete

  MovedBench last(2);
  last.resume(0, 5);
  last.leave(1);
  CHECK(last.said() == "0 resumed 5");
}

TEST_CASE("moved: a rank that has left but lingers is waited for, and asked") {
  MovedBench bench(2);
  bench.linger(1);
  bench.resume(0, 4);
  CHECK(bench.said().empty());
  bench.resume(1, 5);
  CHECK(bench.said() == "1 fetch 4");
  bench.retained(1, 4, 7);
  CHECK(bench.said() == "0 resumed 5, 0 answer 4, 1 resumed 5");

  MovedBench gone(2);
  gone.linger(1);
  gone.resume(0, 4);
  gone.leave(1);
  CHECK(gone.said() == "0 resumed 4");
}

TEST_CASE("moved: who has gone before it said anything is not heard any more") {
  MovedBench bench(3);
  bench.resume_all({5, 4});
  bench.leave(2);
  CHECK(bench.said() == "0 fetch 4");
  const Destination place = bench.begin_retained(0, 4, Bench::kElements * sizeof(float));
  REQUIRE(place.memory != nullptr);
  std::memset(place.memory, 0, Bench::kElements * sizeof(float));
  bench.resume(2, 6);  // said on its way out; it would be the open round
  CHECK(bench.said().empty());
  bench.end_retained(0);
  CHECK(bench.said() == "0 resumed 5, 1 resumed 5, 1 answer 4");
}

TEST_CASE("moved: who has it no more says so, and the next one is asked") {
  const Error lost = make_error(ErrorCode::internal, "not kept here");
  MovedBench bench(4);
  bench.resume_all({4, 5, 5, 4});
  CHECK(bench.said() == "1 fetch 4");
  bench.begin_retained(1, 4, 0, lost);
  bench.end_retained(1);
  CHECK(bench.said() == "2 fetch 4");
  bench.retained(2, 4, 9);
  CHECK(bench.said() == "0 resumed 5, 0 answer 4, 1 resumed 5, 2 resumed 5, 3 resumed 5, 3 answer 4");

  MovedBench nobody(2);
  nobody.resume_all({4, 5});
  nobody.begin_retained(1, 4, 0, lost);
  nobody.end_retained(1);
  REQUIRE(nobody.said() == "0 resumed 5, 0 failed 4, 1 resumed 5");
  CHECK(nobody.actions[1].error.message == "not kept here");
}

TEST_CASE("moved: what only a rank has that left is lost with its lane, and fails") {
  MovedBench bench(3);
  bench.resume_all({4, 5, 4});
  CHECK(bench.said() == "1 fetch 4");
  bench.leave(1);
  CHECK(bench.said().empty());  // its lane is still up
  bench.lose(1);
  REQUIRE(bench.said() == "0 resumed 5, 0 failed 4, 2 resumed 5, 2 failed 4");
  CHECK(bench.actions[1].error.code == ErrorCode::peer_lost);

  // One whose lane has been lost before it left.
  MovedBench early(2);
  early.resume(1, 5);
  early.lose(1);
  early.resume(0, 4);
  CHECK(early.said().empty());
  early.leave(1);
  CHECK(early.said() == "0 resumed 5, 0 failed 4");

  // Who lacks it has left: nobody needs it.
  MovedBench needless(2);
  needless.resume(0, 5);
  needless.lose(0);
  needless.resume(1, 4);
  needless.leave(1);
  needless.resume(0, 5);
  CHECK(needless.said() == "0 resumed 5");
}

TEST_CASE("moved: if all are at the first round, or nobody is left, there is nothing to fetch") {
  MovedBench bench(2);
  bench.resume(0, 0);
  bench.push(1, 0, 2);
  CHECK(bench.said() == "1 not_ready 0, 0 resumed 0, 1 resumed 0, 1 clear_to_send 0");
  bench.push(0, 0, 1);
  bench.push(1, 0, 2);
  CHECK(bench.said() == "0 answer 0, 1 answer 0");

  MovedBench alone(1);
  alone.leave(0);
  CHECK(alone.said().empty());
}

TEST_CASE("moved: a broadcast, pushed while in handoff by one who is not its root") {
  MovedBench bench(2);
  bench.push(1, 3, 0, RoundCall::broadcast(Rank{0}));
  CHECK(bench.said() == "1 not_ready 3");
  bench.resume(0, 3);
  CHECK(bench.said() == "0 resumed 3, 1 resumed 3, 1 clear_to_send 3");
  bench.push(1, 3, 0, RoundCall::broadcast(Rank{0}));
  bench.push(0, 3, 6, RoundCall::broadcast(Rank{0}));
  REQUIRE(bench.said() == "1 answer 3");
  CHECK(first_element(bench.actions[0]) == 6.0f);
}

TEST_CASE("moved: narrow types and partitions without elements") {
  MovedBench half(2, DType::f16);
  half.resume_all({1, 0});
  const Destination destination = half.begin_retained(0, 0, Bench::kElements * 2);
  REQUIRE(destination.memory != nullptr);
  std::memset(destination.memory, 0x3C, Bench::kElements * 2);
  half.end_retained(0);
  REQUIRE(half.said() == "0 resumed 1, 1 resumed 1, 1 answer 0");
  REQUIRE(half.actions[2].payload.bytes.size() == Bench::kElements * 2);
  CHECK(half.actions[2].payload.bytes.back() == std::byte{0x3C});

  MovedBench empty(2, DType::f32, 0);
  empty.resume_all({1, 0});
  CHECK(empty.said() == "0 fetch 0");
  empty.begin_retained(0, 0, 0);
  empty.end_retained(0);
  REQUIRE(empty.said() == "0 resumed 1, 1 resumed 1, 1 answer 0");
  CHECK(empty.actions[2].pin == Action::kNoPin);
}

}  // namespace
}  // namespace bps

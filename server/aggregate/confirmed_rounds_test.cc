// Rounds whose takers report that they have stored the answer, and whose givers wait for that (decision
// 0033).
#include "server/testing/aggregator_harness.h"

namespace bps {
namespace {

using Kind = Action::Kind;
using Catch::Matchers::Contains;

const RoundCall kBroadcast = RoundCall::broadcast(Rank{1});
const RoundCall kReduce = RoundCall::reduce(Operation::sum, Rank{1});

// Rank 1 is the root. All have pushed round 0.
struct Confirmed : Bench {
  explicit Confirmed(const RoundCall& call, std::uint32_t n = 3) : Bench(n) {
    for (std::uint32_t rank = 0; rank < n; ++rank)
      push(rank, 0, static_cast<float>(rank + 1), call);
  }
  void check_failed(const char* words) const {
    for (const Action& action : actions) {
      CHECK(action.kind == Kind::failed);
      CHECK(action.error.code == ErrorCode::peer_lost);
      CHECK_THAT(action.error.message, Contains(words));
    }
  }
  std::vector<std::uint32_t> absent() const {
    OpenState state;
    const bool is_open = aggregator->open_state(state);
    CHECK((state.round > Round{0} || !is_open || state.stage == RoundStage::store));
    return is_open && state.round == Round{0} ? state.absent : std::vector<std::uint32_t>();
  }
};

TEST_CASE("confirmed: the root of a broadcast ends when all others have stored it") {
  Confirmed bench(kBroadcast);
  REQUIRE(bench.said() == "0 answer 0, 2 answer 0");
  CHECK(first_element(bench.actions[1]) == 2.0f);
  CHECK(bench.absent() == std::vector<std::uint32_t>{0, 2});
  bench.stored(2, 0);
  bench.stored(2, 0);
  CHECK(bench.said().empty());
  CHECK(bench.absent() == std::vector<std::uint32_t>{0});
  SECTION("by Stored") { bench.stored(0, 0); }
  SECTION("by the frame of the next round") { bench.begin(0, bench.header(0, 1), 1); }
  SECTION("it has left") {
    bench.actions.clear();
    bench.aggregator->left(0, bench.actions);
  }
  SECTION("it is lost") { bench.die(0); }
  REQUIRE(bench.said() == "1 answer 0");
  CHECK(bench.actions[0].payload.bytes.empty());
  CHECK(bench.actions[0].pin == Action::kNoPin);
  CHECK(bench.actions[0].weight == 1);
  CHECK(bench.absent().empty());
  // Also when it asks again.
  bench.lose(1);
  bench.push(1, 0, 2, kBroadcast);
  CHECK(bench.said() == "1 answer 0");
}

TEST_CASE("confirmed: a giver whose lane breaks is told on the next one") {
  Confirmed bench(kBroadcast);
  bench.lose(1);
  bench.stored(0, 0);
  bench.stored(2, 0);
  CHECK(bench.said().empty());
  bench.push(1, 0, 2, kBroadcast);
  CHECK(bench.said() == "1 answer 0");
}

TEST_CASE("confirmed: a reduce answers its root alone, and ends for the others when it is stored there") {
  Confirmed bench(kReduce);
  REQUIRE(bench.said() == "1 answer 0");
  CHECK(first_element(bench.actions[0]) == 6.0f);
  CHECK(bench.actions[0].weight == 3);
  CHECK(bench.absent() == std::vector<std::uint32_t>{1});
  bench.stored(1, 0);
  REQUIRE(bench.said() == "0 answer 0, 2 answer 0");
  CHECK(bench.actions[0].payload.bytes.empty());
  // In the next round another one gives the bytes.
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    bench.push(rank, 1, 5, RoundCall::broadcast(Rank{0}));
  CHECK(bench.said() == "1 answer 1, 2 answer 1");
}

TEST_CASE("confirmed: the memory of a round goes when its takers have stored it, whatever givers do") {
  Bench bench(2);
  for (const std::uint32_t rank : {1, 0})
    bench.push(rank, 0, 1, RoundCall::reduce(Operation::sum, Rank{0}));
  REQUIRE(bench.said() == "0 answer 0");
  const std::uint64_t one = bench.slots.bytes_in_use();
  const Action answer = bench.actions[0];
  bench.push(0, 1, 1);  // beside the answer, which is still being read
  CHECK(bench.slots.bytes_in_use() == 2 * one);
  bench.unpin(answer);
  CHECK(bench.slots.bytes_in_use() == one);
}

TEST_CASE("confirmed: a reduce whose root is lost fails for all others") {
  Bench first(3);
  first.push(0, 0, 1, kReduce);
  first.push(1, 0, 2, kReduce);
  first.die(1);  // before all have come
  CHECK(first.said().empty());
  first.push(2, 0, 3, kReduce);
  REQUIRE(first.said() == "0 failed 0, 2 failed 0");
  CHECK_THAT(first.actions[0].error.message, Contains("the root of the reduce is lost: it is gone"));

  Confirmed bench(kReduce);
  bench.lose(2);
  bench.die(1);  // before it has stored the answer
  REQUIRE(bench.said() == "0 failed 0");
  bench.check_failed("the root of the reduce is lost: it is gone");
  bench.push(2, 0, 3, kReduce);
  REQUIRE(bench.said() == "2 failed 0");

  Confirmed late(kReduce);
  late.lose(2);
  late.stored(1, 0);
  late.die(1);
  late.push(2, 0, 3, kReduce);
  CHECK(late.said() == "2 answer 0");
}

TEST_CASE("confirmed: a broadcast whose root is lost after it gave goes on") {
  Confirmed bench(kBroadcast);
  bench.lose(2);
  bench.die(1);
  CHECK(bench.said().empty());
  bench.push(2, 0, 0, kBroadcast);
  CHECK(bench.said() == "2 answer 0");
}

TEST_CASE("confirmed: a message whose receiver is lost before it has stored it fails at its source") {
  const RoundCall message = RoundCall::message(Rank{0});
  Bench bench(2);
  const auto fails = [&] {
    REQUIRE(bench.said() == "0 failed 0");
    CHECK(bench.actions[0].error.code == ErrorCode::peer_lost);
    CHECK_THAT(bench.actions[0].error.message, Contains("its receiver is lost: it is gone"));
  };
  SECTION("before it has asked for it") {
    bench.push(0, 0, 1, message);
    bench.die(1);
    fails();
  }
  SECTION("before it is there") {
    bench.push(1, 0, 0, message);
    bench.die(1);
    CHECK(bench.said().empty());
    bench.push(0, 0, 1, message);
    fails();
  }
  SECTION("before it has said that it has stored it") {
    bench.push(0, 0, 1, message);
    bench.push(1, 0, 0, message);
    CHECK(bench.said() == "1 answer 0");
    bench.die(1);
    fails();
  }
  SECTION("afterwards") {
    bench.push(0, 0, 1, message);
    bench.push(1, 0, 0, message);
    CHECK(bench.said() == "1 answer 0");
    bench.stored(1, 0);
    CHECK(bench.said() == "0 answer 0");
    bench.die(1);
    CHECK(bench.said().empty());
  }
  SECTION("and its source is lost after it gave: it has sent it") {
    bench.push(0, 0, 1, message);
    bench.die(0);
    bench.push(1, 0, 0, message);
    CHECK(bench.said() == "1 answer 0");
  }
}

TEST_CASE("confirmed: if the ranks part ways, those that are still in the last round are told") {
  Confirmed bench(kBroadcast);
  bench.stored(2, 0);
  PushPull header = bench.header(2, 1);
  header.dtype = DType::bf16;
  bench.begin(2, header, 1);
  REQUIRE(bench.said() == "1 failed 0");
  CHECK(bench.actions[0].error.code == ErrorCode::configuration);
  bench.end(2);
  CHECK(bench.said() == "2 failed 1");
}

// ---- the partition moves ----

// Round 0 is over for those that name round 1.
struct MovedConfirmed : Bench {
  MovedConfirmed(std::initializer_list<std::uint64_t> rounds)
      : Bench(static_cast<std::uint32_t>(rounds.size())) {
    move_here();
    for (std::uint32_t rank = 0; const std::uint64_t round : rounds)
      resume(rank++, round, false);
  }
};

TEST_CASE("confirmed, moved: the root gives again what a taker lacks") {
  MovedConfirmed bench({1, 0, 0});
  REQUIRE(bench.said() == "0 resumed 1, 1 resumed 1, 2 resumed 1");
  const bool taker_first = GENERATE(true, false);
  // The open round has begun, and takes memory.
  bench.push(0, 1, 1);
  if (taker_first) bench.push(2, 0, 0, kBroadcast);
  CHECK(bench.said().empty());
  SECTION("at once") {
    CHECK(bench.begin(1, bench.header(1, 0, kBroadcast), 7) == Destination::Kind::memory);
    bench.end(1);
  }
  SECTION("asked for") {
    PushPull request = bench.header(1, 0, kBroadcast);
    request.rendezvous = true;
    CHECK(bench.begin(1, request, 0, 0) == Destination::Kind::drop);
    bench.end(1);
    CHECK(bench.said() == "1 clear_to_send 0");
    bench.push(1, 0, 7, kBroadcast);
  }
  SECTION("its lane breaks in the middle") {
    CHECK(bench.begin(1, bench.header(1, 0, kBroadcast), 5) == Destination::Kind::memory);
    bench.lose(1);
    CHECK(bench.said().empty());
    bench.push(1, 0, 7, kBroadcast);
  }
  SECTION("lent") {
    CHECK_FALSE(bench.lend(1, 0, 7, false, false, kBroadcast));
    bench.push(1, 0, 7, kBroadcast);
  }
  if (!taker_first) bench.push(2, 0, 0, kBroadcast);
  REQUIRE(bench.said() == "2 answer 0");
  CHECK(first_element(bench.actions[0]) == 7.0f);
  bench.unpin(bench.actions[0]);
  bench.stored(2, 0);
  REQUIRE(bench.said() == "1 answer 0");
  bench.push(1, 1, 2);
  bench.push(2, 1, 4);
  REQUIRE(bench.said() == "0 answer 1, 1 answer 1, 2 answer 1");
  CHECK(first_element(bench.actions[0]) == 7.0f);
}

TEST_CASE("confirmed, moved: a giver whose takers have all stored is told so") {
  MovedConfirmed broadcast({1, 0, 1});
  broadcast.push(1, 0, 7, kBroadcast);
  CHECK(broadcast.said() == "1 answer 0");
  MovedConfirmed reduce({0, 1, 0});
  reduce.push(2, 0, 7, kReduce);
  CHECK(reduce.said() == "2 answer 0");
  reduce.push(0, 0, 7, kReduce);
  CHECK(reduce.said() == "0 answer 0");
}

TEST_CASE("confirmed, moved: memory that was kept for bytes that nobody lacks goes back") {
  MovedConfirmed bench({1, 0, 1});
  const std::uint64_t one = BufferPool::class_bytes(Bench::kElements * sizeof(float));
  bench.push(1, 0, 7, kBroadcast);
  CHECK(bench.said() == "1 answer 0");
  bench.push(0, 1, 1);
  CHECK(bench.slots.bytes_in_use() == one);
}

TEST_CASE("confirmed, moved: what was arriving when the handoff ended is asked for again") {
  Bench bench(3);
  bench.move_here();
  bench.resume(0, 1, false);
  bench.begin(2, bench.header(2, 0, kReduce), 1);
  bench.resume(1, 1, false);
  CHECK(bench.said().empty());
  bench.end(2);
  CHECK(bench.said() == "2 not_ready 0, 0 resumed 1, 1 resumed 1, 2 resumed 1, 2 clear_to_send 0");
  bench.push(2, 0, 1, kReduce);
  CHECK(bench.said() == "2 answer 0");

  Bench late(3);
  late.move_here();
  late.resume(0, 1, false);
  late.resume(2, 0);
  late.begin(2, late.header(2, 0, kReduce), 1);
  late.resume(1, 1, false);
  late.end(2);
  CHECK(late.said() == "2 not_ready 0, 2 resumed 1, 2 clear_to_send 0");
}

TEST_CASE("confirmed, moved: a root that leaves while its bytes are wanted fails those that want them") {
  MovedConfirmed bench({1, 0, 0});
  bench.push(2, 0, 0, kBroadcast);
  bench.actions.clear();
  bench.aggregator->left(1, bench.actions);
  CHECK(bench.said() == "2 failed 0");
}

TEST_CASE("confirmed, moved: without the root nobody gives again") {
  MovedConfirmed bench({1, 0, 0});
  SECTION("it is lost before anybody has asked") {
    bench.die(1);
    bench.push(2, 0, 0, kBroadcast);
  }
  SECTION("it is lost after that") {
    bench.push(2, 0, 0, kBroadcast);
    bench.die(1);
  }
  REQUIRE(bench.said() == "2 failed 0");
  CHECK(bench.actions[0].error.code == ErrorCode::peer_lost);
  CHECK_THAT(bench.actions[0].error.message, Contains("the root of the broadcast is lost: it is gone"));
}

TEST_CASE("confirmed, moved: who breaks the rules gets an error, and nobody waits") {
  MovedConfirmed bench({1, 0, 0});
  SECTION("a push_pull") { bench.push(2, 0, 1); }
  SECTION("a reduce whose root lacks it") { bench.push(2, 0, 1, kReduce); }
  SECTION("a root that is in the next round") { bench.push(2, 0, 1, RoundCall::broadcast(Rank{0})); }
  SECTION("a root that gives too little") {
    bench.push(2, 0, 0, kBroadcast);
    CHECK(bench.begin(1, bench.header(1, 0, kBroadcast), 7, 8) == Destination::Kind::drop);
    CHECK(bench.said() == "2 failed 0");
    bench.end(1);
    CHECK(bench.said() == "1 failed 0");
    return;
  }
  REQUIRE(bench.said() == "2 failed 0");
}

TEST_CASE("confirmed, moved: an answer that has failed is fetched like others") {
  Bench bench(2);
  bench.move_here();
  bench.resume(0, 1, true);
  bench.resume(1, 0, true);
  REQUIRE(bench.said() == "0 fetch 0");
}

}  // namespace
}  // namespace bps

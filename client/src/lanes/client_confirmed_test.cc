// Broadcast and reduce (decision 0033): who takes reports that it has stored the answer, who gives waits for
// its end, and nothing is kept for others.
#include "client/src/engine/testing/moving_harness.h"

namespace bps::testing {
namespace {

using Catch::Matchers::Contains;

// Of round 0.
constexpr std::pair<std::uint32_t, std::uint64_t> kPart0{0, 0}, kPart2{2, 0};

std::vector<StoredRounds> not_kept(std::vector<StoredRounds> list, std::size_t index) {
  list[index].kept = false;
  return list;
}

// Rank 0, the one here, gives and takes according to the call.
struct Confirmed : Moving {
  explicit Confirmed(bool retain = true) : Moving(with(retain)) {}

  void broadcast(Rank root) {
    auto& buffer = root == Rank{0} ? in : out;
    REQUIRE(engine.begin(broadcast_of(tensor, buffer, root, into(outcome))).ok());
  }
  void reduce(Rank root, bool in_place = false) {
    const std::span<std::byte> result =
        root == Rank{0} ? std::span(in_place ? in : out) : std::span<std::byte>();
    REQUIRE(engine.begin(reduce_of(tensor, in, result, Operation::sum, root, into(outcome))).ok());
  }
  // What all three partitions send.
  void take_all() { take(0), take(1), take(0); }
};

TEST_CASE("reduce: the root takes the sum, in place or not") {
  const bool retain = GENERATE(true, false);
  const bool in_place = GENERATE(true, false);
  Confirmed c(retain);
  c.reduce(Rank{0}, in_place);
  CHECK(c.take(0).call == RoundCall::reduce(Operation::sum, Rank{0}));
  CHECK(c.payload == bytes_of(kSlice, 1));
  c.take(1), c.take(0);
  CHECK(c.lane(0).deliver(c.answer(0, 0, kSlice), bytes_of(kSlice, 9)));
  CHECK(c.take_stored(0) == kPart0);
  CHECK(c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8)));
  CHECK(c.lane(0).deliver(c.answer(2, 0, kSlice + 100), bytes_of(100, 7)));
  CHECK(c.outcome.ended == 1);
  CHECK(c.outcome.weight == 2);
  CHECK((in_place ? c.in : c.out) == c.expected());
}

TEST_CASE("reduce: the others give, and end without an answer") {
  Confirmed c;
  c.reduce(Rank{1});
  CHECK(c.take(0).call == RoundCall::reduce(Operation::sum, Rank{1}));
  CHECK(c.payload == bytes_of(kSlice, 1));
  c.take(1), c.take(0);
  c.lane(0).deliver(c.answer(0, 0, kSlice + 100));
  c.lane(0).deliver(c.answer(2, 0, kSlice + 100));
  CHECK(c.outcome.ended == 0);
  c.lane(1).deliver(c.answer(1, 0, kSlice));
  CHECK(c.outcome.ended == 1);
  CHECK(c.in == bytes_of(2 * kSlice + 100, 1));
  CHECK(c.lane(0).frames.empty());
  SECTION("an answer with a payload breaks the rules") {
    c.reduce(Rank{1});
    c.take_all();
    CHECK_FALSE(c.lane(1).deliver(c.answer(1, 1, 2 * kSlice), bytes_of(kSlice, 9)));
    CHECK_THAT(c.failure(), Contains("an answer of"));
  }
}

TEST_CASE("confirmed: what is stored is reported again on a new session, until the next answer") {
  Confirmed c;
  c.broadcast(Rank{1});
  c.take_all();
  CHECK(c.lane(0).deliver(c.answer(0, 0, 0), bytes_of(kSlice, 9)));
  CHECK(c.take_stored(0) == kPart0);
  const auto reconnect = [&] {
    c.lane(0).break_with(ErrorCode::unreachable, "connection reset");
    c.loop.run_for(Lane::kLongestPause);
    c.scheduler().deliver(Heartbeat{1});
    c.welcome_lane(0);
  };
  reconnect();
  // Partition 2 is still in the round.
  CHECK(c.take_stored(0) == kPart0);
  CHECK(c.take(0).partition == PartitionId{2});
  CHECK(c.lane(0).deliver(c.answer(2, 0, 0), bytes_of(100, 7)));
  CHECK(c.take_stored(0) == kPart2);
  CHECK(c.lane(1).deliver(c.answer(1, 0, 0), bytes_of(kSlice, 8)));
  REQUIRE(c.outcome.ended == 1);
  reconnect();
  CHECK(c.take_stored(0) == kPart0);
  CHECK(c.take_stored(0) == kPart2);
  // Also while the next round is under way.
  c.push_pull();
  c.take(0), c.take(0);
  reconnect();
  std::size_t reports = 0;
  for (int i = 0; i < 4; ++i) {
    if (std::holds_alternative<Stored>(c.lane(0).frames.front().message)) ++reports;
    c.lane(0).frames.pop_front();
  }
  CHECK(reports == 2);
  CHECK(c.lane(0).deliver(c.answer(0, 1, kSlice + 100), bytes_of(kSlice, 9)));
  CHECK(c.lane(0).deliver(c.answer(2, 1, kSlice + 100), bytes_of(100, 7)));
  reconnect();
  CHECK(c.lane(0).frames.empty());
}

TEST_CASE("confirmed: nothing is kept for others; who is still in the round sends its frame again") {
  const auto kind = GENERATE(RoundKind::broadcast, RoundKind::reduce);
  const bool gives = GENERATE(true, false);
  Confirmed c;
  const Rank root{gives == (kind == RoundKind::broadcast) ? 0u : 1u};
  kind == RoundKind::broadcast ? c.broadcast(root) : c.reduce(root);
  c.take_all();
  const bool takes = root == Rank{0} ? kind == RoundKind::reduce : kind == RoundKind::broadcast;
  const bool has_payload = kind == RoundKind::reduce || root == Rank{0};
  const std::uint64_t sent = has_payload ? kSlice + 100 : 0;
  if (takes) {
    CHECK(c.lane(0).deliver(c.answer(0, 0, sent), bytes_of(kSlice, 9)));
    CHECK(c.take_stored(0) == kPart0);
  } else {
    c.lane(0).deliver(c.answer(0, 0, sent));
  }
  c.move();
  CHECK(c.resume(1) == not_kept(rounds({{0, 1}, {2, 0}}), 0));
  // Others are in the next round.
  const std::uint64_t taken = has_payload ? kSlice : 0;
  c.resumed(1, 2, 1, taken);
  const PushPull again = c.take(1);
  CHECK(again.partition == PartitionId{2});
  CHECK(again.round == Round{0});
  CHECK(again.call.kind == kind);
  // Mostly nobody needs its bytes.
  CHECK(again.rendezvous);
  CHECK(c.payload.empty());
  if (has_payload) {
    c.lane(1).deliver(ClearToSend{PartitionId{2}, Round{0}, kSlice});
    CHECK_FALSE(c.take(1).rendezvous);
    CHECK(c.payload.size() == 100);
  }
  c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, taken});
  CHECK_THAT(c.retained(1).error.message, Contains("is not kept here"));
}

TEST_CASE("confirmed: after one that is kept, an answer is fetched as before") {
  Confirmed c;
  c.broadcast(Rank{1});
  c.take_all();
  CHECK(c.lane(0).deliver(c.answer(0, 0, 0), bytes_of(kSlice, 9)));
  CHECK(c.lane(1).deliver(c.answer(1, 0, 0), bytes_of(kSlice, 8)));
  CHECK(c.lane(0).deliver(c.answer(2, 0, 0), bytes_of(100, 7)));
  c.take_stored(0), c.take_stored(0), c.take_stored(1);
  c.push_pull();
  c.take_all();
  CHECK(c.lane(0).deliver(c.answer(0, 1, kSlice + 100), bytes_of(kSlice, 5)));
  c.move();
  CHECK(c.resume(1) == not_kept(rounds({{0, 2}, {2, 1}}), 1));
  c.resumed(1, 0, 2, kSlice);
  c.lane(1).deliver(Fetch{PartitionId{0}, Round{1}, kSlice});
  CHECK(c.retained(1, &c.payload).error.code == ErrorCode::ok);
  CHECK(c.payload == bytes_of(kSlice, 5));
}

TEST_CASE("confirmed: a round that fails is not reported, and its error is kept for others") {
  Confirmed c;
  c.broadcast(Rank{1});
  c.take_all();
  const Error lost = make_error(ErrorCode::peer_lost, "the root is lost");
  c.lane(0).deliver(RoundFailed{PartitionId{0}, Round{0}, lost, 0});
  CHECK(c.lane(0).frames.empty());
  c.move();
  CHECK(c.resume(1) == rounds({{0, 1}, {2, 0}}));
  c.resumed(1, 0, 1, 0);
  c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, 0});
  CHECK(c.retained(1).error.message == "the root is lost");
}

}  // namespace
}  // namespace bps::testing

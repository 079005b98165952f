// What a worker keeps of the last round, and hands on when partitions get another owner.
#include "client/src/engine/testing/moving_harness.h"

namespace bps::testing {

using namespace std::chrono_literals;
using Catch::Contains;

namespace {

// A round whose answers on lane 0 are lent, the first with weight 3.
struct WithLoans : Moving {
  explicit WithLoans(bool view) {
    Request request =
        push_pull_of(tensor, in, view ? std::span<std::byte>() : out, Operation::average, into(outcome));
    request.view = view;
    REQUIRE(engine.begin(std::move(request)).ok());
    take(0), take(1), take(0);
    CHECK(lend(lane(0), answer(0, 0, kSlice + 100, 3), a));
    CHECK(lend(lane(0), answer(2, 0, kSlice + 100), b));
  }
  const std::shared_ptr<FakeLoan> a = FakeLoan::of(bytes_of(kSlice, 9));
  const std::shared_ptr<FakeLoan> b = FakeLoan::of(bytes_of(100, 7));
};

}  // namespace

TEST_CASE("fetch: of an answer in library memory, while the next round goes on") {
  Moving c;
  c.first_round();
  c.move();
  (void)c.resume(1);
  c.push_pull();
  c.take(1);
  c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, 2 * kSlice});
  Retained kept = c.retained(1, &c.payload, false);
  CHECK(kept.job_run == JobRun{77});
  CHECK(kept.partition == PartitionId{0});
  CHECK(kept.round == Round{0});
  CHECK(kept.epoch == Epoch{4});
  CHECK(kept.generation == Generation{1});
  CHECK(kept.weight == 2);
  CHECK(kept.error.code == ErrorCode::ok);
  CHECK(c.payload == bytes_of(kSlice, 9));
  CHECK(c.engine.stats()->pushed_bytes == 4 * kSlice + 100);
  c.resumed(1, 0, 1, 3 * kSlice);  // it counts as taken
  const std::uint64_t cookie = c.last_cookie;
  c.take(1);
  SECTION("the next answer spares what the connection still reads") {
    CHECK(c.lane(1).deliver(c.answer_of(4, 0, 1, 4 * kSlice), bytes_of(kSlice, 5)));
    CHECK(c.outcome.ended == 1);
    c.resumed(1, 2, 1, 4 * kSlice);
    c.take(1);
    CHECK(c.lane(1).deliver(c.answer_of(4, 2, 1, 4 * kSlice), bytes_of(100, 7)));
    CHECK(c.lane(1).deliver(c.answer_of(4, 1, 1, 4 * kSlice), bytes_of(kSlice, 8)));
    CHECK(c.outcome.ended == 1);
    c.lane(1).sent(cookie);
    CHECK(c.outcome.ended == 2);
    CHECK(std::equal(c.out.begin(), c.out.begin() + kSlice, bytes_of(kSlice, 5).begin()));
    c.lane(1).deliver(Fetch{PartitionId{0}, Round{1}, 4 * kSlice + 100});
    CHECK(c.retained(1, &c.payload).error.code == ErrorCode::ok);
    CHECK(c.payload == bytes_of(kSlice, 5));
  }
  SECTION("a second one before the first is sent is too many") {
    c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, 3 * kSlice});
    CHECK_THAT(c.failure(), Contains("sent Fetch for partition 0, which is on its way"));
  }
  SECTION("the lane breaks: again on the next one") {
    c.lane(1).break_with(ErrorCode::unreachable, "connection reset");
    c.loop.run_for(Lane::kFirstPause);
    c.welcome_lane(1);
    while (!c.lane(1).frames.empty())
      c.lane(1).frames.pop_front();
    c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, 0});
    (void)c.retained(1, &c.payload);
    CHECK(c.payload == bytes_of(kSlice, 9));
  }
  SECTION("closing the engine meanwhile") {
    const ExpectLog warning("closes in the middle of round 1 of layer1.weight");
    c.engine.close(1s, [](Status) {});
    c.loop.run_for(2s);
    CHECK(c.outcome.ended == 2);
  }
}

TEST_CASE("fetch: of an answer that was lent, which comes home before its lender goes") {
  const bool view = GENERATE(false, true);
  WithLoans c(view);
  const bool ended = GENERATE(false, true);
  if (ended) CHECK(c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8)));
  c.b->withdraw();
  c.move();
  c.a->withdraw();
  // What a view gathers and cannot be read any more is asked for again.
  CHECK(c.resume(1) == rounds({{0, 1}, {2, view && !ended ? 0 : 1}}));
  CHECK(c.a->is_out() == (view && ended));
  c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, kSlice});
  const Retained kept = c.retained(1, &c.payload);
  CHECK(kept.weight == 3);
  CHECK(c.payload == bytes_of(kSlice, 9));
  c.lane(1).deliver(Fetch{PartitionId{2}, Round{0}, 2 * kSlice});
  CHECK(c.retained(1).error.code == ErrorCode::internal);
  if (!ended) {
    CHECK(c.lane(1).deliver(c.answer(1, 0, 2 * kSlice), bytes_of(kSlice, 8)));
    if (view) {
      c.resumed(1, 2, 1, 2 * kSlice);
      CHECK(c.lane(1).deliver(c.answer_of(4, 2, 0, 2 * kSlice), bytes_of(100, 7)));
    }
  }
  CHECK(c.outcome.ended == 1);
  if (!view) {
    CHECK(c.out == c.expected());
  } else if (!ended) {
    CHECK(c.engine.view(c.tensor)->intact());
    CHECK(c.engine.view(c.tensor)->pieces()[0].bytes[0] == std::byte{9});
  }
}

TEST_CASE("fetch: of an answer that was lent, which comes home before its lane breaks off") {
  const bool view = GENERATE(false, true);
  WithLoans c(view);
  Wire& old = c.lane(0);
  old.when_closed = [&] { c.a->withdraw(), c.b->withdraw(); };
  SECTION("it says so") {
    old.deliver(Refused{ErrorCode::peer_lost, "the server stops", ""});
    CHECK_FALSE(old.open());
  }
  SECTION("it is the worker that breaks off") { old.deliver(Welcome{}); }
  CHECK_FALSE(old.open());
  c.move();
  CHECK(c.resume(1) == rounds({{0, 1}, {2, 1}}));
  c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, kSlice});
  CHECK(c.retained(1, &c.payload).weight == 3);
  CHECK(c.payload == bytes_of(kSlice, 9));
  c.lane(1).deliver(Fetch{PartitionId{2}, Round{0}, 2 * kSlice});
  CHECK(c.retained(1, &c.payload).error.code == ErrorCode::ok);
  CHECK(c.payload == bytes_of(100, 7));
}

TEST_CASE("fetch: of a round that failed, until the next one has a result") {
  Moving c;
  c.push_pull();
  c.take(0), c.take(1), c.take(0);
  const Error error = make_error(ErrorCode::peer_lost, "the root is lost");
  c.lane(0).deliver(RoundFailed{PartitionId{0}, Round{0}, error, kSlice});
  c.move();
  CHECK(c.resume(1) == rounds({{0, 1}, {2, 0}}));
  c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, kSlice});
  const Retained kept = c.retained(1, &c.payload);
  CHECK(kept.error.message == "the root is lost");
  CHECK(kept.weight == 0);
  CHECK(c.payload.empty());
  c.lane(1).deliver(Fetch{PartitionId{2}, Round{0}, kSlice});  // not over here
  CHECK_THAT(c.retained(1).error.message, Contains("round 0 of partition 2") && Contains("is not kept here"));
  CHECK(c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8)));
  c.resumed(1, 2, 0, kSlice);
  c.take(1);
  CHECK(c.lane(1).deliver(c.answer_of(4, 2, 0, kSlice + 100), bytes_of(100, 7)));
  CHECK(c.outcome.ended == 1);
  c.resumed(1, 0, 1, kSlice + 100);
  c.push_pull();
  c.take(1), c.take(1), c.take(1);
  c.finish_at_lane_1(1, 2 * (kSlice + 100));
  c.lane(1).deliver(Fetch{PartitionId{0}, Round{0}, 2 * (kSlice + 100)});
  CHECK(c.retained(1).error.code == ErrorCode::internal);
}

}  // namespace bps::testing

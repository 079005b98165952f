// Answers that servers lend, through the engine.
#include "client/src/engine/testing/fake_loan.h"
#include "client/src/engine/testing/moving_harness.h"

namespace bps::testing {

using namespace std::chrono_literals;
using Catch::Contains;

namespace {

struct Loans {
  std::shared_ptr<FakeLoan> a = FakeLoan::of(bytes_of(kSlice, 9)), b = FakeLoan::of(bytes_of(kSlice, 8)),
                            c = FakeLoan::of(bytes_of(100, 7));
};

void lend_all(Running& c, const Loans& loans, std::uint64_t round = 0) {
  CHECK(lend(c.lane(0), c.answer(0, round, kSlice + 100), loans.a));
  CHECK(lend(c.lane(1), c.answer(1, round, kSlice), loans.b));
  CHECK(lend(c.lane(0), c.answer(2, round, kSlice + 100), loans.c));
}

}  // namespace

TEST_CASE("lent: answers are copied into the output and counted") {
  for (const bool retain : {true, false}) {
    Running c(with(retain));
    c.push_pull_in_place();
    c.take(0), c.take(1), c.take(0);
    const Loans loans;
    lend_all(c, loans);
    CHECK(c.outcome.ended == 1);
    CHECK(c.outcome.weight == 2);
    CHECK(c.in == c.expected());
    CHECK(c.engine.stats()->pulled_bytes == 2 * kSlice + 100);
    CHECK(loans.a->is_out() == retain);
    c.in = bytes_of(2 * kSlice + 100, 1);
    c.push_pull_in_place();
    CHECK(c.take(0).round == Round{1});
    c.take(1), c.take(0);
    CHECK(loans.a->is_out() == retain);  // others may lack it
    lend_all(c, Loans(), 1);
    CHECK_FALSE(loans.a->is_out());
  }
}

TEST_CASE("lent: in place, the answer waits for the contribution that is still being read") {
  Running c;
  c.push_pull_in_place();
  std::uint64_t cookie = 0;
  (void)c.lane(0).next<PushPull>(nullptr, &cookie);
  c.take(0), c.take(1);
  lend_all(c, Loans{});
  CHECK(c.outcome.ended == 0);
  CHECK(c.in[0] == std::byte{1});
  c.lane(0).sent(cookie);
  CHECK(c.outcome.ended == 1);
  CHECK(c.in == c.expected());
}

TEST_CASE("lent: what is scarce, a duplicate or wrong takes the ordinary way") {
  Running c;
  c.push_pull();
  c.take(0), c.take(1), c.take(0);
  const Loans loans;
  CHECK_FALSE(lend(c.lane(0), c.answer(0, 0, kSlice + 100), loans.a, true));
  CHECK(c.lane(0).deliver(c.answer(0, 0, kSlice + 100), bytes_of(kSlice, 9)));
  CHECK_FALSE(lend(c.lane(0), c.answer(0, 0, kSlice + 100), loans.a));
  CHECK_FALSE(c.lane(0).deliver(c.answer(0, 0, kSlice + 100), bytes_of(kSlice, 9)));
  CHECK_FALSE(loans.a->is_out());
  CHECK_FALSE(lend(c.lane(1), c.answer(0, 0, kSlice), loans.a));  // not its partition
  CHECK_FALSE(lend(c.lane(1), c.answer(1, 0, kSlice), loans.c));  // too short
  CHECK_FALSE(lend(c.lane(1), Credit{}, loans.c));
  CHECK_FALSE(c.engine.failure());
  CHECK(lend(c.lane(1), c.answer(1, 0, kSlice + 1), loans.b));
  REQUIRE(c.engine.failure());
  CHECK_THAT(c.outcome.error.message, Contains("counts 4097 bytes taken"));
  CHECK_FALSE(loans.b->is_out());
}

TEST_CASE("lent: a withdrawn answer breaks the lane off and is asked for again") {
  for (const bool retain : {true, false}) {
    Running c(with(retain));
    c.push_pull();
    c.take(0), c.take(1), c.take(0);
    const auto gone = FakeLoan::of(bytes_of(kSlice, 66));
    gone->withdraw_after(1);
    CHECK(lend(c.lane(0), c.answer(0, 0, kSlice + 100), gone));
    CHECK_FALSE(c.lane(0).open());
    CHECK_FALSE(gone->is_out());
    CHECK_THAT(c.engine.describe(c.tensor), Contains("closed the connection while its answer was read"));
    c.loop.run_for(Lane::kFirstPause);
    CHECK(c.welcome_lane(0).session == Session{2});
    CHECK(c.take(0).partition == PartitionId{0});
    CHECK(c.take(0).partition == PartitionId{2});
    lend_all(c, Loans{});
    CHECK(c.outcome.ended == 1);
    CHECK(c.outcome.error.code == ErrorCode::ok);
    CHECK(c.out == c.expected());
  }
}

TEST_CASE("lent: withdrawn when the contribution is let go of at last") {
  Running c;
  c.push_pull_in_place();
  std::uint64_t cookie = 0;
  (void)c.lane(0).next<PushPull>(nullptr, &cookie);
  c.take(0), c.take(1);
  const Loans loans;
  lend_all(c, loans);
  loans.a->withdraw();
  c.lane(0).sent(cookie);
  CHECK_FALSE(c.lane(0).open());
  CHECK(c.outcome.ended == 0);
  CHECK(c.in[0] == std::byte{1});
  c.loop.run_for(Lane::kFirstPause);
  c.welcome_lane(0);
  CHECK(c.take(0).partition == PartitionId{0});
  CHECK(c.lane(0).frames.empty());
  CHECK(c.lane(0).deliver(c.answer(0, 0, kSlice), bytes_of(kSlice, 9)));
  CHECK(c.outcome.ended == 1);
  CHECK(c.in == c.expected());
}

TEST_CASE("lent: an answer read in place, its lane gone before and after the end of the round") {
  Running c;
  REQUIRE(c.engine.begin(view_of(c.tensor, c.in, c.into(c.outcome))).ok());
  c.take(0), c.take(1), c.take(0);
  Loans loans;
  const auto gone = FakeLoan::of(bytes_of(kSlice, 66));
  CHECK(lend(c.lane(0), c.answer(0, 0, kSlice + 100), gone));
  gone->withdraw();
  c.lane(0).break_with(ErrorCode::unreachable, "connection reset");
  c.loop.run_for(Lane::kFirstPause);
  c.welcome_lane(0);
  c.take(0), c.take(0);
  lend_all(c, loans);
  CHECK(c.outcome.ended == 1);
  const auto view = c.engine.view(c.tensor);
  REQUIRE(view != nullptr);
  std::vector<std::byte> all;
  for (const auto& piece : view->pieces())
    all.insert(all.end(), piece.bytes.begin(), piece.bytes.end());
  CHECK(all == c.expected());
  CHECK(view->intact());
  c.lane(1).break_with(ErrorCode::unreachable, "connection reset");
  CHECK(c.outcome.ended == 1);
  loans.b->withdraw();
  CHECK_FALSE(view->intact());
}

}  // namespace bps::testing

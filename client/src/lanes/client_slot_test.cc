// Tensors in mode slot (decision 0040): the server gets its memory back before the program's next call.
#include "client/src/engine/testing/moving_harness.h"

namespace bps::testing {
namespace {

constexpr std::uint32_t kSlot = 3;  // its partition, on lane 0

struct Slot : Moving {
  explicit Slot(bool retain = true) : Moving(with(retain)) {
    tensor = declare("slot", kSlice, {0}, Mode::slot);
    in.resize(kSlice);
    out.resize(kSlice);
  }
  void answered() {
    CHECK(outcome.ended == 1);
    CHECK(out == bytes_of(kSlice, 9));
    CHECK(take_stored(0) == std::pair{kSlot, std::uint64_t{0}});
  }
};

TEST_CASE("slot: an answer that is stored is reported, and on a new session again") {
  Slot c(GENERATE(true, false));
  c.push_pull();
  c.take(0);
  CHECK(c.lane(0).deliver(c.answer(kSlot, 0, kSlice), bytes_of(kSlice, 9)));
  c.answered();
  c.lane(0).break_with(ErrorCode::unreachable, "connection reset");
  c.loop.run_for(Lane::kLongestPause);
  c.scheduler().deliver(Heartbeat{1});
  c.welcome_lane(0);
  CHECK(c.take_stored(0) == std::pair{kSlot, std::uint64_t{0}});
  CHECK(c.lane(0).frames.empty());
}

TEST_CASE("slot: an answer is not kept where it is lent") {
  Slot c(GENERATE(true, false));
  c.push_pull();
  c.take(0);
  const auto loan = FakeLoan::of(bytes_of(kSlice, 9));
  CHECK_FALSE(lend(c.lane(0), c.answer(kSlot, 0, kSlice), loan));  // the transport copies it
  CHECK(c.lane(0).deliver(c.answer(kSlot, 0, kSlice), bytes_of(kSlice, 9)));
  c.answered();
}

TEST_CASE("slot: an answer is kept for others, though it was reported") {
  Slot c;
  c.push_pull();
  c.take(0);
  CHECK(c.lane(0).deliver(c.answer(kSlot, 0, kSlice), bytes_of(kSlice, 9)));
  c.answered();
  Moved moved = c.moved();
  moved.moves.push_back({PartitionId{kSlot}, LaneIndex{1}});
  c.move(moved);
  CHECK(c.resume(1).back() == StoredRounds{PartitionId{kSlot}, Round{1}});  // it has it, for others
  c.lane(1).deliver(Fetch{PartitionId{kSlot}, Round{0}, 0});
  CHECK(c.retained(1, &c.payload).error.code == ErrorCode::ok);
  CHECK(c.payload == bytes_of(kSlice, 9));
}

TEST_CASE("slot: a call without elements has no slot, and reports nothing") {
  Slot c;
  c.in.clear();
  c.out.clear();
  c.push_pull();
  c.take(0);
  c.lane(0).deliver(c.answer(kSlot, 0, 0));
  CHECK(c.outcome.ended == 1);
  CHECK(c.lane(0).frames.empty());
}

}  // namespace
}  // namespace bps::testing

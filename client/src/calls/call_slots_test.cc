#include "client/src/calls/call_slots.h"

#include <catch2/catch.hpp>

namespace bps {

TEST_CASE("call slots: the smallest class that holds a call, its slots in turn") {
  CallSlots slots;
  const auto only = [&](const RoundCall& call, DType dtype, std::uint64_t count) {
    const std::vector<CallPiece> pieces = slots.next(1, call, dtype, count);
    REQUIRE(pieces.size() == 1);
    CHECK(pieces[0].begin == 0);
    CHECK(pieces[0].count == count);
    return pieces[0].slot;
  };
  CHECK(only(Operation::sum, DType::f32, 1024) == CallSlot{false, DType::f32, 0, 0, 0});
  CHECK(only(Operation::max, DType::f32, 0) == CallSlot{false, DType::f32, 0, 0, 1});
  CHECK(only(Operation::sum, DType::f32, 1025) == CallSlot{false, DType::f32, 1, 0, 0});
  CHECK(only(Operation::sum, DType::f64, 512) == CallSlot{false, DType::f64, 0, 0, 0});
  CHECK(only(RoundCall::broadcast(Rank{3}), DType::u8, 4096) == CallSlot{true, DType::u8, 0, 0, 0});
  CHECK(only(Operation::bit_or, DType::u8, 4096) == CallSlot{false, DType::u8, 0, 0, 0});
  CHECK(only(RoundCall::reduce(Operation::sum, Rank{1}), DType::f32, 5) ==
        CallSlot{false, DType::f32, 0, 0, 2});
  for (std::uint32_t i = 3; i < CallSlots::kClasses[0].slots; ++i)
    CHECK(only(Operation::sum, DType::f32, 1).index == i);
  CHECK(only(Operation::sum, DType::f32, 1).index == 0);
}

TEST_CASE("call slots: what is longer than the largest class travels in pieces") {
  CallSlots slots;
  const auto last = static_cast<std::uint32_t>(CallSlots::kClasses.size() - 1);
  const std::uint64_t longest = CallSlots::kClasses[last].bytes / 4;
  CHECK(slots.next(1, Operation::sum, DType::f32, longest).size() == 1);
  const std::vector<CallPiece> pieces = slots.next(1, Operation::sum, DType::f32, 3 * longest + 7);
  REQUIRE(pieces.size() == 4);
  std::uint64_t begin = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    CHECK(pieces[i].slot == CallSlot{false, DType::f32, last, 0, (i + 1) % 2});
    CHECK(pieces[i].begin == begin);
    CHECK(pieces[i].count == (i < 3 ? longest : 7));
    begin += pieces[i].count;
  }
}

TEST_CASE(
    "call slots: calls of parts have slots as long as they are, for each table, and the last tables are "
    "kept") {
  CallSlots slots;
  const RoundCall gather = RoundCall::all_gather();
  std::uint64_t number = 0;
  const auto slot_of = [&](std::uint64_t count, const std::vector<std::uint64_t>& parts) {
    const std::vector<CallPiece> pieces = slots.next(++number, gather, DType::u8, count, parts);
    REQUIRE(pieces.size() == 1);
    CHECK(pieces[0].count == count);
    CHECK(slots.elements_of(pieces[0].slot) == count);
    CHECK(slots.parts_of(pieces[0].slot) == parts);
    return pieces[0].slot;
  };
  CHECK(slot_of(100, {50}) == CallSlot{true, DType::u8, 0, 1, 0});
  CHECK(slot_of(100, {60, 40}) == CallSlot{true, DType::u8, 0, 2, 0});
  CHECK(slot_of(100, {50}) == CallSlot{true, DType::u8, 0, 1, 1});
  CHECK(slot_of(1ull << 30, {1ull << 29}).index == 0);
  CHECK(slot_of(0, {0}).index == 0);
  CHECK(slots.retired() == 0);
  for (std::uint64_t length = 1; length <= CallSlots::kMostTables - 3; ++length) {
    CHECK(slots.retired() == 0);
    (void)slot_of(2000 + 2 * length, {1000 + length});
  }
  CHECK(slots.retired() == 2);  // {60, 40}, which nobody has used since
  CHECK(slot_of(100, {60, 40}).table == number);
  CHECK(slots.retired() != 0);
}

TEST_CASE("call slots: every class is larger than the one before, and holds whole elements of all types") {
  std::uint64_t before = 0;
  for (const CallSlots::SizeClass& size_class : CallSlots::kClasses) {
    CHECK(size_class.bytes > before);
    CHECK(size_class.bytes % 8 == 0);
    CHECK(size_class.slots > 0);
    CHECK(CallSlots::class_of(before + 1) == CallSlots::class_of(size_class.bytes));
    before = size_class.bytes;
  }
  CHECK(CallSlots::class_of(~std::uint64_t{0}) == CallSlots::kClasses.size() - 1);
}

}  // namespace bps

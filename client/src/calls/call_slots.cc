#include "client/src/calls/call_slots.h"

#include <algorithm>

namespace bps {

std::vector<CallPiece> CallSlots::next(const RoundCall& call, DType dtype, std::uint64_t count) {
  CallSlot slot{call.is_copy(), dtype, class_of(count * size_of(dtype)), 0};
  std::uint32_t& turn = turns_[slot];
  const std::uint64_t longest = elements_of(slot);
  std::vector<CallPiece> pieces;
  pieces.reserve(std::max<std::uint64_t>(1, (count + longest - 1) / longest));
  std::uint64_t begin = 0;
  do {
    slot.index = turn;
    turn = (turn + 1) % kClasses[slot.size_class].slots;
    pieces.push_back({slot, begin, std::min(longest, count - begin)});
    begin += longest;
  } while (begin < count);
  return pieces;
}

}  // namespace bps

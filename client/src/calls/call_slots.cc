#include "client/src/calls/call_slots.h"

#include <algorithm>
#include <utility>

namespace bps {

std::vector<CallPiece> CallSlots::next(std::uint64_t number, const RoundCall& call, DType dtype,
                                       std::uint64_t count, const std::vector<std::uint64_t>& parts) {
  retired_ = 0;
  CallSlot slot{call.is_copy(), dtype, class_of(count * size_of(dtype)), 0, 0};
  if (call.is_of_parts()) slot.table = table_of({slot.is_copy, dtype, count, parts}, number);
  std::uint32_t& turn = turns_[slot];
  const std::uint64_t longest = elements_of(slot);
  std::vector<CallPiece> pieces;
  std::uint64_t begin = 0;
  do {
    slot.index = turn;
    turn = (turn + 1) % slots_of(slot);
    pieces.push_back({slot, begin, std::min(longest, count - begin)});
    begin += longest;
  } while (begin < count);
  return pieces;
}

std::uint64_t CallSlots::table_of(Family&& family, std::uint64_t number) {
  const auto [known, is_new] = numbers_.try_emplace(std::move(family), number);
  Table& table = tables_[known->second];
  table.used = number;
  if (!is_new) return known->second;
  table.of = known->first;
  if (tables_.size() <= kMostTables) return number;
  const auto oldest = std::min_element(tables_.begin(), tables_.end(), [](const auto& a, const auto& b) {
    return a.second.used < b.second.used;
  });
  retired_ = oldest->first;
  numbers_.erase(oldest->second.of);
  tables_.erase(oldest);
  std::erase_if(turns_, [&](const auto& entry) { return entry.first.table == retired_; });
  return number;
}

std::uint64_t CallSlots::elements_of(const CallSlot& slot) const {
  if (slot.table != 0) return tables_.at(slot.table).of.count;
  return kClasses[slot.size_class].bytes / size_of(slot.dtype);
}

const std::vector<std::uint64_t>& CallSlots::parts_of(const CallSlot& slot) const {
  static const std::vector<std::uint64_t> none;
  return slot.table == 0 ? none : tables_.at(slot.table).of.parts;
}

}  // namespace bps

// Which slots carry a group's calls without names (decision 0039): a pure function of the calls before, so
// that all ranks find the same without talking. A slot is a tensor that the library declares. A call is a
// round of a slot, or several where it travels in pieces. A round may be shorter than its slot.
//
// A family is what can be in one slot: reductions of one type, and copies, which are bytes. A call's size
// class is the smallest that holds it; what is longer than the largest class travels in pieces. The pieces of
// a family and class take its slots in turn. Calls of parts have slots of their own for each table of parts,
// as long as those are; a group keeps the tables that were used last.
//
// Owner: GroupCalls, one for each group. Pure. Limits: kMostTables.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "proto/base/dtype.h"
#include "proto/base/round_call.h"

namespace bps {

struct CallSlot {
  bool is_copy = false;
  DType dtype = DType::f32;  // of a copy u8
  std::uint32_t size_class = 0;
  std::uint64_t table = 0;  // of parts: the number of the call that brought it; 0: none
  std::uint32_t index = 0;
  friend auto operator<=>(const CallSlot&, const CallSlot&) = default;
};

struct CallPiece {
  CallSlot slot;
  std::uint64_t begin = 0;  // in elements of the slot, in the call
  std::uint64_t count = 0;
};

class CallSlots {
 public:
  struct SizeClass {
    std::uint64_t bytes;
    std::uint32_t slots;  // so many calls are under way at once
  };
  static constexpr std::uint64_t kKiB = 1024;
  static constexpr std::uint64_t kMiB = 1024 * kKiB;
  // Every rank has the same: they are part of the protocol.
  static constexpr std::array<SizeClass, 11> kClasses = {{{4 * kKiB, 32},
                                                          {16 * kKiB, 32},
                                                          {64 * kKiB, 32},
                                                          {256 * kKiB, 32},
                                                          {512 * kKiB, 16},
                                                          {1 * kMiB, 8},
                                                          {2 * kMiB, 8},
                                                          {4 * kMiB, 4},
                                                          {8 * kMiB, 4},
                                                          {16 * kMiB, 2},
                                                          {32 * kMiB, 2}}};
  static constexpr std::size_t kMostTables = 64;  // likewise
  static constexpr std::uint32_t class_of(std::uint64_t bytes) {
    std::uint32_t size_class = 0;
    while (size_class + 1 < kClasses.size() && kClasses[size_class].bytes < bytes)
      ++size_class;
    return size_class;
  }
  static std::uint32_t slots_of(const CallSlot& slot) { return kClasses[slot.size_class].slots; }

  // The next call, which has this number; of a copy `dtype` is u8. One of no elements has a piece, too.
  std::vector<CallPiece> next(std::uint64_t number, const RoundCall& call, DType dtype, std::uint64_t count,
                              const std::vector<std::uint64_t>& parts = {});
  // A table that is not kept any more, since the last call; 0: none.
  std::uint64_t retired() const { return retired_; }
  // What a slot is declared with, while its table is kept.
  std::uint64_t elements_of(const CallSlot& slot) const;
  const std::vector<std::uint64_t>& parts_of(const CallSlot& slot) const;

 private:
  struct Family {
    bool is_copy;
    DType dtype;
    std::uint64_t count;
    std::vector<std::uint64_t> parts;
    friend auto operator<=>(const Family&, const Family&) = default;
  };
  struct Table {
    Family of;
    std::uint64_t used = 0;  // number of the last call
  };

  std::uint64_t table_of(Family&& family, std::uint64_t number);

  std::map<CallSlot, std::uint32_t> turns_;  // by the slot with index 0
  std::map<Family, std::uint64_t> numbers_;
  std::map<std::uint64_t, Table> tables_;  // by number
  std::uint64_t retired_ = 0;
};

}  // namespace bps

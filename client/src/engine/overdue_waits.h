// Which waits have taken too long, and when to look again. Each is reported once.
//
// The owner passes in all waits that are open. A wait that becomes overdue a moment after the oldest one is
// reported together with it: the tensors of one step make one line. Pure. Limits: remembers as many as were
// passed in last.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "proto/base/loop/event_loop.h"

namespace bps {

class OverdueWaits {
 public:
  enum class Kind : std::uint8_t { round, barrier, declaration };
  struct Item {
    Kind kind = Kind::round;
    std::uint64_t id = 0;      // tensor, barrier or request
    std::uint64_t number = 0;  // round
    TimePoint since;
    friend auto operator<=>(const Item&, const Item&) = default;
  };
  struct Overdue {
    Item item;
    std::size_t others = 0;  // reported together with it
  };
  struct Look {
    std::optional<Overdue> overdue;  // the oldest one that was not reported yet
    TimePoint next;                  // until then no other one is overdue, whatever begins meanwhile
  };

  explicit OverdueWaits(Duration limit) : limit_(limit) {}

  Look look(TimePoint now, const std::vector<Item>& items);

 private:
  Duration limit_;
  std::set<Item> told_;
};

}  // namespace bps

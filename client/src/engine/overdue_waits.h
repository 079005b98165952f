// Which of the things that somebody waits for have taken too long, told once each, and when to look again.
//
// Whoever owns the waits shows all of them. What is overdue soon is told with the oldest one that is, so that
// the tensors of a step make one line. Pure. Limits: remembers as many as were shown last.
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
    std::size_t others = 0;  // that are told with it
  };
  struct Look {
    std::optional<Overdue> overdue;  // the oldest one that has not been told
    TimePoint next;                  // until then no other one is overdue, whatever begins meanwhile
  };

  explicit OverdueWaits(Duration limit) : limit_(limit) {}

  Look look(TimePoint now, const std::vector<Item>& items);

 private:
  Duration limit_;
  std::set<Item> told_;
};

}  // namespace bps

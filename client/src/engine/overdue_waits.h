// Which of the things that somebody waits for have taken too long, told once each.
//
// Whoever owns the waits shows all of them from time to time; a wait is as old as its first look. Pure.
// Limits: remembers as many as were shown last.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
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
    friend auto operator<=>(const Item&, const Item&) = default;
  };
  struct Overdue {
    Item item;
    Duration age{};
    std::size_t others = 0;  // that are overdue, and were not before this look
  };

  explicit OverdueWaits(Duration limit) : limit_(limit) {}

  // Nothing: no wait became overdue since the last look. Else the oldest one.
  std::optional<Overdue> look(TimePoint now, const std::vector<Item>& items);

 private:
  struct Known {
    TimePoint since;
    bool told = false;
  };
  Duration limit_;
  std::map<Item, Known> known_;
};

}  // namespace bps

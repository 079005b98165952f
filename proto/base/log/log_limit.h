// Lines that strangers can provoke, as often as they like, must not fill the disk: one is written per
// interval, and the next one tells how many were left out. Owner: one loop. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "proto/base/loop/event_loop.h"

namespace bps {

class LogLimit {
 public:
  explicit LogLimit(Duration interval = std::chrono::seconds(1)) : interval_(interval) {}

  // What to append to the line: nothing, or " (and 7 others before)". nullopt: leave it out.
  std::optional<std::string> admit(TimePoint now) {
    if (now < next_) {
      ++left_out_;
      return std::nullopt;
    }
    next_ = now + interval_;
    const std::uint64_t others = std::exchange(left_out_, 0);
    return others == 0 ? std::string() : " (and " + std::to_string(others) + " others before)";
  }

 private:
  const Duration interval_;
  TimePoint next_{};
  std::uint64_t left_out_ = 0;
};

}  // namespace bps

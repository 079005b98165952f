// For tests of the C API: what calls that should fail say.
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <string>

#include "client/include/bps/bps.h"
#include "proto/base/loop/event_loop.h"

namespace bps::testing {

// What a call that should fail says.
struct Refusal {
  bps_error error = BPS_ERROR_INIT;
  operator bps_error*() { return &error; }
  std::string message() const { return error.message; }
};

// What a wait that expires says. The client's loop has a second for it, and the scheduler a quarter to say
// whom it waits for; where one has been too late and `text` is missing, `wait` is tried again.
inline std::string explained(const std::function<bps_status(bps_error*)>& wait, const std::string& text) {
  const TimePoint deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (true) {
    Refusal why;
    CHECK(wait(why) == BPS_DEADLINE);
    CHECK(why.error.exit_code == 75);
    const bool is_there = why.message().find(text) != std::string::npos;
    if (is_there || std::chrono::steady_clock::now() > deadline) return why.message();
  }
}

}  // namespace bps::testing

// For tests: something that runs on a loop of another thread, which the test waits for.
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <memory>

#include "proto/base/loop/asio_loop.h"
#include "proto/base/loop/completion.h"

namespace bps::testing {

// Before this anything is there, and after it the test has failed: a machine is never that slow.
inline TimePoint soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

// Returns when it has run. Not on the loop's own thread.
template <class Run>
void run_on(AsioLoop& loop, Run run) {
  auto done = std::make_shared<Completion<bool>>();
  loop.post([run, done] {
    run();
    done->set(true);
  });
  REQUIRE(done->wait_until(soon()));
}

}  // namespace bps::testing

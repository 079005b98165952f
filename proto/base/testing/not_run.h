// For tests that need what not every host has: they say that they did not run, and tests/run.sh repeats it at
// the end.
#pragma once

#include <catch2/catch.hpp>
#include <cstdio>
#include <string>

namespace bps::testing {

// `what` is missing here, and `why`: the caller returns.
inline void not_run(const std::string& what, const std::string& why) {
  std::printf("%s: not run: %s\n", what.c_str(), why.c_str());
  SUCCEED("not run");
}

}  // namespace bps::testing

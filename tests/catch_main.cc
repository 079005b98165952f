// The main of every Catch2 test. Besides Catch's own checks, a test case that logs a warn or error line
// which it did not expect (ExpectLog) makes the run fail.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdio>

#include "proto/base/log/log.h"

namespace {

bool unexpected_lines_seen = false;

struct LogListener : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    for (const std::string& line : bps::take_unexpected_log_lines()) {
      unexpected_lines_seen = true;
      std::printf("unexpected log line in \"%s\": %s\n", stats.testInfo.name.c_str(), line.c_str());
    }
  }
};
CATCH_REGISTER_LISTENER(LogListener)

}  // namespace

int main(int argc, char** argv) {
  const int failed = Catch::Session().run(argc, argv);
  return failed == 0 && unexpected_lines_seen ? 1 : failed;
}

// The main of every Catch2 test. Besides Catch's own checks, a test case makes the run fail that logs a warn
// or error line which it did not expect (ExpectLog), or that checks nothing. (Catch's own `-w NoAssertions`
// also refuses sections whose checks stand behind them all.)
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdio>

#include "proto/base/log/log.h"

namespace {

bool refused = false;

struct LogListener : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    for (const std::string& line : bps::take_unexpected_log_lines()) {
      refused = true;
      std::printf("unexpected log line in \"%s\": %s\n", stats.testInfo.name.c_str(), line.c_str());
    }
    if (stats.totals.assertions.total() == 0) {
      refused = true;
      std::printf("no assertions in \"%s\"\n", stats.testInfo.name.c_str());
    }
  }
};
CATCH_REGISTER_LISTENER(LogListener)

}  // namespace

int main(int argc, char** argv) {
  const int failed = Catch::Session().run(argc, argv);
  return failed == 0 && refused ? 1 : failed;
}

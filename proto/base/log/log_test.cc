#include "proto/base/log/log.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace bps {
namespace {

struct Capture {
  std::vector<std::string> lines;
  std::shared_ptr<LogTarget> target(LogLevel level) {
    return LogTarget::to_callback(
        [this](LogLevel line_level, std::string_view component, std::string_view text) {
          lines.push_back(std::string(name_of(line_level)) + "|" + std::string(component) + "|" +
                          std::string(text));
        },
        level);
  }
};

TEST_CASE("a logger writes the lines of its level to its own target") {
  Capture mine;
  Capture other;
  const Logger log("client", mine.target(LogLevel::info));
  const Logger second("client", other.target(LogLevel::debug));
  log.info("joined as rank {} of {}", 3, 8);
  log.debug("not shown");
  second.child("lane 2").debug("{:.1f} s", 0.25);
  CHECK(mine.lines == std::vector<std::string>{"info|client|joined as rank 3 of 8"});
  CHECK(other.lines == std::vector<std::string>{"debug|client/lane 2|0.2 s"});

  mine.target(LogLevel::off);
  log.target()->set_level(LogLevel::trace);
  log.trace("now shown");
  CHECK(mine.lines.size() == 2);
}

TEST_CASE("control characters of a peer's text cannot break a line") {
  Capture capture;
  Logger("server", capture.target(LogLevel::info)).info("name '{}'", "a\nb\x1b[0m");
  CHECK(capture.lines == std::vector<std::string>{"info|server|name 'a\\x0ab\\x1b[0m'"});
}

TEST_CASE("warn and error lines are counted, also when nobody shows them") {
  take_unexpected_log_lines();
  Capture capture;
  const Logger log("core", capture.target(LogLevel::off));
  const LogCounts before = log_counts();
  log.warn("odd {}", 1);
  log.error("bad");
  log.info("fine");
  CHECK(capture.lines.empty());
  CHECK(log_counts().warnings == before.warnings + 1);
  CHECK(log_counts().errors == before.errors + 1);
  CHECK(take_unexpected_log_lines() == std::vector<std::string>{"warn core: odd 1", "error core: bad"});
  CHECK(take_unexpected_log_lines().empty());
}

TEST_CASE("an expected line is not reported") {
  take_unexpected_log_lines();
  Capture capture;
  const Logger log("core", capture.target(LogLevel::warn));
  {
    const ExpectLog expect("speaks HTTP");
    log.warn("10.0.0.1:5 speaks HTTP");
    CHECK(expect.seen() == 1);
    CHECK(take_unexpected_log_lines().empty());
  }
  log.warn("10.0.0.1:5 speaks HTTP");
  CHECK(take_unexpected_log_lines().size() == 1);
}

TEST_CASE("level names") {
  CHECK(log_level_from_name("debug") == LogLevel::debug);
  CHECK(log_level_from_name("off") == LogLevel::off);
  CHECK_FALSE(log_level_from_name("loud").has_value());
  CHECK(name_of(LogLevel::warn) == "warn");
}

}  // namespace
}  // namespace bps

#include "client/src/runtime/lone_series.h"

#include <catch2/catch.hpp>
#include <cstdint>

namespace bps {
namespace {

using namespace std::chrono_literals;

struct Program {
  void start(std::size_t bytes = 4096) { series.start(bytes, now); }
  void end() {
    series.end();
    series.waited(now);
  }
  void one(std::size_t bytes = 4096, Duration gap = 100us) {
    now += gap;
    start(bytes);
    now += 50us;
    end();
  }
  void begin_series() {
    for (int i = 0; i <= LoneSeries::kEnough; ++i)
      one();
    REQUIRE(series.goes_on());
  }

  LoneSeries series;
  TimePoint now{};
};

TEST_CASE("lone series: small operations in a row, each waited for, are one") {
  Program program;
  CHECK_FALSE(program.series.goes_on());
  for (int i = 0; i < LoneSeries::kEnough; ++i) {
    program.one();
    CHECK_FALSE(program.series.goes_on());
  }
  program.one();
  CHECK(program.series.goes_on());
  program.one(LoneSeries::kMostBytes, LoneSeries::kLongestGap);
  CHECK(program.series.goes_on());
  program.start(0);
  CHECK(program.series.goes_on());
}

TEST_CASE("lone series: what a program does otherwise ends it") {
  Program program;
  program.begin_series();
  SECTION("a larger operation") { program.one(LoneSeries::kMostBytes + 1); }
  SECTION("what has no length") { program.one(SIZE_MAX); }
  SECTION("it computes for long between two") { program.one(4096, LoneSeries::kLongestGap + 1ns); }
  SECTION("it does not wait for one") {
    program.start();
    program.series.end();
    program.one();
  }
  CHECK_FALSE(program.series.goes_on());
  for (int i = 0; i < LoneSeries::kEnough; ++i)
    program.one();
  CHECK(program.series.goes_on());
}

TEST_CASE("lone series: while another one is under way it does not go on, and begins anew") {
  Program program;
  program.begin_series();
  program.start();
  CHECK(program.series.goes_on());
  program.start();
  CHECK_FALSE(program.series.goes_on());
  program.end();  // of two
  program.end();
  CHECK_FALSE(program.series.goes_on());
}

}  // namespace
}  // namespace bps

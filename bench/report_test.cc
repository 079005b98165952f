#include "bench/report.h"

#include <catch2/catch.hpp>

namespace bps::bench {
namespace {

using Catch::Contains;

Options options() {
  Options o;
  o.workers = 4;
  o.servers = 2;
  o.bytes = ByteSize{1'000'000'000};
  return o;
}

Series series() {
  Series s;
  s.name = "pushpull";
  s.seconds = {1, 3};
  s.cpu_seconds = {4, 4};
  s.own_cpu_seconds = {2, 2};
  s.round_us = {1e6, 3e6};
  s.rounds = 2;
  return s;
}

}  // namespace

TEST_CASE("a JSON line has the keys in order and the units that it says") {
  // 2 rounds of 1 GB in 4 s; 8 CPU seconds for 2 rounds of 4 workers.
  CHECK(json_lines(options(), {series()}, {}) ==
        R"({"bench":"pushpull","workers":4,"servers":2,"bytes":1000000000,"dtype":"f32","iters":2,)"
        R"("algbw_GBps":0.5,"p50_us":1000000.0,"p99_us":3000000.0,"cpu_s_per_GB":1.0,"verified":true,)"
        R"("own_cpu_s_per_GB":0.5})"
        "\n");
}

TEST_CASE("a wrong result is told in both forms") {
  Series wrong = series();
  wrong.wrong = "worker 1: element 7";
  CHECK_THAT(json_lines(options(), {wrong}, {}), Contains(R"("verified":false)"));
  CHECK_THAT(table(options(), {wrong}, {}), Contains("NO: worker 1: element 7"));
}

TEST_CASE("ratios follow, with their interval") {
  const RatioLine ratio{"seconds", "pushpull/floor", {1.23456, 1.1, 1.3}};
  CHECK_THAT(json_lines(options(), {}, {ratio}), Contains(R"("value":1.235,"low":1.1,"high":1.3)"));
  CHECK_THAT(table(options(), {}, {ratio}), Contains("pushpull/floor seconds: 1.235 (1.100 to 1.300)"));
}

TEST_CASE("nothing measured is no infinity") {
  Series none = series();
  none.seconds.clear();
  none.round_us.clear();
  none.rounds = 0;
  CHECK_THAT(json_lines(options(), {none}, {}),
             Contains(R"("algbw_GBps":0.0)") && Contains(R"("cpu_s_per_GB":0.0)"));
}

}  // namespace bps::bench

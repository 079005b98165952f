#include "bench/commands/report.h"

#include <catch2/catch.hpp>

namespace bps::bench {
namespace {

using Catch::Contains;

Options options() {
  Options o;
  o.workers = 4;
  o.servers = 2;
  o.bytes = ByteSize{500'000'000};
  o.tensors = 2;
  o.link = BitRate{1'000'000'000};
  o.colocated = 1;
  return o;
}

Series series() {
  Series s;
  s.name = "pushpull";
  s.settings["retain"] = true;
  s.seconds = {1, 3};
  s.cpu_seconds = {4, 4};
  s.idle_seconds = {2, 0};
  s.own_cpu_seconds = {2, 2};
  s.round_us = {1e6, 3e6};
  s.rounds = 2;
  return s;
}

Outcome outcome_of(const Series& s) {
  Outcome outcome;
  add_series(outcome, options(), s);
  return outcome;
}

}  // namespace

TEST_CASE("a JSON line has the keys in order and the units that it says") {
  // 2 rounds of 1 GB in 4 s; 8 CPU seconds for 2 rounds of 4 workers, beside 2 idle ones.
  CHECK(json_lines(outcome_of(series())) ==
        R"({"bench":"pushpull","workers":4,"servers":2,"bytes":500000000,"dtype":"f32","iters":2,)"
        R"("algbw_GBps":0.5,"p50_us":2000000.0,"p99_us":3000000.0,"cpu_s_per_GB":1.0,"verified":true,)"
        R"("own_cpu_s_per_GB":0.5,"min_us":1000000.0,"max_us":3000000.0,"p50_low_us":1000000.0,)"
        R"("p50_high_us":3000000.0,"idle":0.2,"tensors":2,)"
        R"("link_bps":1000000000,"colocated":1,"tstar_s":12.55,"t_over_tstar":0.1594,"retain":true})"
        "\n");
}

TEST_CASE("a wrong result is told in both forms") {
  Series wrong = series();
  wrong.wrong = "worker 1: element 7";
  const Outcome outcome = outcome_of(wrong);
  CHECK(outcome.wrong == "pushpull gave a wrong result: worker 1: element 7");
  CHECK_THAT(json_lines(outcome), Contains(R"("verified":false)"));
  CHECK_THAT(table(outcome), Contains("NO") && Contains("worker 1: element 7"));
}

TEST_CASE("ratios follow, with their interval; alike lines stand together") {
  Outcome outcome = outcome_of(series());
  add_series(outcome, options(), series());
  add_ratio(outcome, "pushpull/floor", "seconds", {1.23456, 1.1, 1.3});
  CHECK_THAT(json_lines(outcome), Contains(R"("value":1.235,"low":1.1,"high":1.3)"));
  CHECK_THAT(table(outcome), Contains("  pushpull    pushpull\n") &&
                                 Contains("ratio  pushpull/floor  seconds  1.235  1.1  1.3") &&
                                 Contains("verified                   yes         yes\n"));
}

TEST_CASE("nothing measured is no infinity") {
  Series none = series();
  none.seconds.clear();
  none.round_us.clear();
  none.idle_seconds.clear();
  none.cpu_seconds.clear();
  none.rounds = 0;
  CHECK_THAT(json_lines(outcome_of(none)),
             Contains(R"("algbw_GBps":0)") && Contains(R"("cpu_s_per_GB":0)") && Contains(R"("idle":0)"));
}

}  // namespace bps::bench

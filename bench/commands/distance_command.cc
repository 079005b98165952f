// distance: how far apart the CPUs of this machine are just now.
#include "bench/commands/report.h"
#include "bench/commands/subcommands.h"
#include "bench/stats/cpu_distance.h"
#include "proto/base/config/config.h"

namespace bps::bench {
namespace {

Result<Outcome> run() {
  const auto distance = cpu_distance();
  if (!distance) return distance.error();
  Line line;
  line["bench"] = "distance";
  line["cpus"] = distance->cpus;
  line["round_trip_ns"] = rounded(distance->round_trip_ns);
  line["before_others"] = distance->before_others;
  Outcome outcome;
  outcome.lines.push_back(std::move(line));
  return outcome;
}

}  // namespace

int distance_command(int argc, const char* const* argv) {
  std::string json;
  Config config("bps-bench distance",
                "Times a cache line's way from the first CPU to the farthest one and back, just now: where a "
                "hypervisor moves CPUs about, what is measured on them changes with it.");
  add_json_flag(config, json);
  if (const auto status = config.parse_or_exit(argc, argv, Logger("bps-bench"))) return *status;
  return finish(json, run());
}

}  // namespace bps::bench

// pushpull and floor: rounds of large tensors, one at a time.
#include "bench/subcommands.h"

namespace bps::bench {
namespace {

Result<std::vector<Side>> measure(const Options& options, std::vector<EngineOptions> engines,
                                  std::vector<Side> sides) {
  auto cluster = options.cluster();
  if (!cluster) return cluster.error();
  cluster->worker.engines = std::move(engines);
  return run_sides(*cluster, std::move(sides), {.rounds = options.warmup}, {.rounds = options.iters});
}

Result<Outcome> run_pushpull(const Options& options, bool floor) {
  std::vector<EngineOptions> engines = {options.engine(EngineKind::pushpull)};
  std::vector<Side> sides = {{.engine = 0, .series = {"pushpull", options.engine_settings()}}};
  if (floor) {
    engines.push_back({.kind = EngineKind::floor});
    sides.push_back({.engine = 1, .series = {"floor"}});
  }
  const auto measured = measure(options, std::move(engines), std::move(sides));
  if (!measured) return measured.error();
  Outcome outcome;
  for (const Side& side : *measured)
    add_series(outcome, options, side.series);
  if (!floor) return outcome;
  const Series& ours = (*measured)[0].series;
  const Series& raw = (*measured)[1].series;
  const auto compare = [&](const char* of, const std::vector<double>& a, const std::vector<double>& b) {
    add_ratio(outcome, "pushpull/floor", of, median_of(ratios(a, b)));
  };
  compare("seconds", ours.seconds, raw.seconds);
  compare("cpu_s_per_GB", ours.cpu_seconds, raw.cpu_seconds);
  compare("own_cpu_s_per_GB", ours.own_cpu_seconds, raw.own_cpu_seconds);
  return outcome;
}

Result<Outcome> run_floor(const Options& options) {
  const auto measured = measure(options, {{.kind = EngineKind::floor}}, {{.series = {"floor"}}});
  if (!measured) return measured.error();
  Outcome outcome;
  add_series(outcome, options, measured->front().series);
  return outcome;
}

}  // namespace

int pushpull_command(int argc, const char* const* argv) {
  Options options;
  bool floor = false;
  Config config(
      "bps-bench pushpull",
      "Times push_pull: starts a scheduler, servers and workers, lets all workers push and pull again "
      "and again, and checks every element of every result.");
  add_common_flags(config, options);
  add_link_flags(config, options);
  add_library_flags(config, options);
  config.add("floor", floor, "Run the floor too, in turns, and print the ratios");
  if (const auto status = config.parse_or_exit(argc, argv, Logger("bps-bench"))) return *status;
  return finish(options.json, run_pushpull(options, floor));
}

int floor_command(int argc, const char* const* argv) {
  Options options;
  Config config(
      "bps-bench floor",
      "Times raw TCP that moves the bytes of push_pull between as many processes and does nothing with "
      "them: what no implementation can beat.");
  add_common_flags(config, options);
  add_link_flags(config, options);
  if (const auto status = config.parse_or_exit(argc, argv, Logger("bps-bench"))) return *status;
  return finish(options.json, run_floor(options));
}

}  // namespace bps::bench

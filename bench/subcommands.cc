#include "bench/subcommands.h"

#include <algorithm>

namespace bps::bench {
namespace {

// Rounds of a latency block: long enough that the change from one side to the other costs nothing, short
// enough that both see the same weather.
constexpr std::uint32_t kLatencyBlock = 250;

struct Side {
  Target target;
  Series series;
  std::uint64_t next_round = 0;
};

// Lets the sides take turns, block by block; who is first changes each time. Rounds of a side are numbered
// through, warm-up included, because a tensor's rounds are.
Status take_turns(Cluster& cluster, std::vector<Side>& sides, std::uint64_t rounds,
                  std::uint32_t block_rounds, bool timed) {
  bool reversed = false;
  for (std::uint64_t done = 0; done < rounds; reversed = !reversed) {
    const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(block_rounds, rounds - done));
    for (std::size_t i = 0; i < sides.size(); ++i) {
      Side& side = sides[reversed ? sides.size() - 1 - i : i];
      const Request block{
          .target = side.target, .back_to_back = block_rounds > 1, .count = count, .round = side.next_round};
      Status status = measure_block(cluster, block, timed ? &side.series : nullptr, side.series.wrong);
      if (!status) return status;
      side.next_round += count;
    }
    done += count;
  }
  return {};
}

Result<Outcome> run(const Options& options, RawKind raw, std::vector<Side> sides,
                    std::uint32_t block_rounds) {
  auto cluster_options = options.cluster();
  if (!cluster_options) return cluster_options.error();
  cluster_options->worker.raw = raw;
  cluster_options->with_bps =
      std::any_of(sides.begin(), sides.end(), [](const Side& side) { return side.target == Target::bps; });
  Cluster cluster;
  if (Status status = cluster.start(*cluster_options); !status) return std::move(status).error();
  for (const bool timed : {false, true}) {
    const std::uint64_t rounds = timed ? options.iters : options.warmup;
    if (Status status = take_turns(cluster, sides, rounds, block_rounds, timed); !status) {
      return std::move(status).error();
    }
  }
  Outcome outcome;
  for (Side& side : sides)
    outcome.series.push_back(std::move(side.series));
  return outcome;
}

Side side(Target target, const char* name) {
  Side out{target, {}, 0};
  out.series.name = name;
  return out;
}

// A quotient of two totals, with no interval.
Median quotient(double a, double b) {
  const double value = b > 0 ? a / b : 0;
  return {value, value, value};
}

}  // namespace

Result<Outcome> run_pushpull(const Options& options) {
  std::vector<Side> sides = {side(Target::bps, "pushpull")};
  if (options.floor) sides.push_back(side(Target::raw, "floor"));
  auto outcome = run(options, options.floor ? RawKind::floor : RawKind::none, std::move(sides), 1);
  if (!outcome || !options.floor) return outcome;
  const Series& ours = outcome->series[0];
  const Series& floor = outcome->series[1];
  outcome->ratios.push_back({"seconds", "pushpull/floor", median_of(ratios(ours.seconds, floor.seconds))});
  outcome->ratios.push_back(
      {"cpu_s_per_GB", "pushpull/floor", median_of(ratios(ours.cpu_seconds, floor.cpu_seconds))});
  outcome->ratios.push_back(
      {"own_cpu_s_per_GB", "pushpull/floor", median_of(ratios(ours.own_cpu_seconds, floor.own_cpu_seconds))});
  return outcome;
}

Result<Outcome> run_latency(const Options& options) {
  auto outcome =
      run(options, RawKind::echo, {side(Target::bps, "latency"), side(Target::raw, "echo")}, kLatencyBlock);
  if (!outcome) return outcome;
  const std::vector<double>& ours = outcome->series[0].round_us;
  const std::vector<double>& echo = outcome->series[1].round_us;
  for (const double percent : {50.0, 99.0}) {
    outcome->ratios.push_back({percent == 50 ? "p50_us" : "p99_us", "latency/echo",
                               quotient(percentile(ours, percent), percentile(echo, percent))});
  }
  return outcome;
}

Result<Outcome> run_floor(const Options& options) {
  return run(options, RawKind::floor, {side(Target::raw, "floor")}, 1);
}

}  // namespace bps::bench

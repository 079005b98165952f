// priority: what a small urgent tensor has to wait behind bulk, and what the bulk loses by it.
#include <chrono>
#include <vector>

#include "bench/commands/race.h"
#include "bench/commands/subcommands.h"
#include "bench/engines/priority_engine.h"
#include "bench/stats/bootstrap.h"

namespace bps::bench {
namespace {

// Rounds of a block: some seconds, so that starting and ending the bulk is a small part.
constexpr std::uint32_t kPriorityBlock = 50;

struct Priority {
  Options options;
  ByteSize urgent_bytes{64 * 1024};
  Duration every = std::chrono::milliseconds(50);
};

constexpr std::uint8_t number_of(PriorityMode mode) { return static_cast<std::uint8_t>(mode); }

void add_line(Outcome& outcome, const Priority& run, const Series& series, bool urgent) {
  Line line;
  line["bench"] = series.name;
  line["workers"] = run.options.workers;
  line["servers"] = run.options.servers;
  line["bytes"] = run.options.bytes.bytes;
  line["urgent_bytes"] = run.urgent_bytes.bytes;
  line["every_ms"] = std::chrono::duration<double, std::milli>(run.every).count();
  line["dtype"] = run.options.dtype;
  line["iters"] = series.rounds;
  for (const auto& [key, percent] :
       {std::pair{"p50_us", 50.0}, {"p99_us", 99.0}, {"min_us", 0.0}, {"max_us", 100.0}})
    line[key] = urgent ? rounded(percentile(series.round_us, percent)) : 0;
  line["bulk_GBps"] = rounded(median_of(series.background).value / 1e9);
  line["verified"] = series.wrong.empty();
  line["idle"] = rounded(idle_share(series));
  line["link_bps"] = run.options.link ? run.options.link->bits_per_second : 0;
  outcome.lines.push_back(std::move(line));
  note_wrong(outcome, series.name, series.wrong);
}

void add_difference(Outcome& outcome, const Series& a, const Series& b, double percent, const char* of) {
  add_comparison(outcome, "difference", a.name + "-" + b.name, of,
                 percentile_difference(a.round_us, b.round_us, percent, kPriorityBlock));
}

Result<Outcome> measure(const Priority& run) {
  const Options& options = run.options;
  auto race = Race::of(options);
  if (!race) return race.error();
  const std::size_t element = size_of(race->worker().dtype);
  if (run.urgent_bytes.bytes == 0 || run.urgent_bytes.bytes % element != 0) {
    return make_error(ErrorCode::invalid_argument, "--urgent-bytes must be whole elements, and not 0");
  }
  if (run.every <= Duration::zero())
    return make_error(ErrorCode::invalid_argument, "--every must be more than 0");
  race->worker().echo_bytes = run.urgent_bytes.bytes;
  const auto settings = options.engine_settings();
  race->add(options.engine(EngineKind::priority), {"urgent", settings}, number_of(PriorityMode::urgent));
  race->add_mode(number_of(PriorityMode::bulk), {"bulk", settings});
  race->add_mode(number_of(PriorityMode::both), {"urgent+bulk", settings});
  race->add({.kind = EngineKind::raw_priority}, {"raw urgent"}, number_of(PriorityMode::urgent));
  race->add_mode(number_of(PriorityMode::both), {"raw urgent+bulk"});
  const auto sides = race->run({.block_rounds = kPriorityBlock, .period_ns = run.every.count()});
  if (!sides) return sides.error();
  Outcome outcome;
  for (const Side& each : *sides)
    add_line(outcome, run, each.series, each.mode != number_of(PriorityMode::bulk));
  const Series& bulk = (*sides)[1].series;
  const Series& both = (*sides)[2].series;
  const Series& raw = (*sides)[4].series;
  add_difference(outcome, both, raw, 50, "p50_us");
  add_difference(outcome, both, raw, 99, "p99_us");
  add_difference(outcome, both, (*sides)[0].series, 99, "p99_us");
  add_ratio(outcome, both.name + "/" + bulk.name, "bulk_GBps",
            median_of(ratios(both.background, bulk.background)));
  // What the link carries of the urgent tensor is not lost.
  std::vector<double> carried = both.background;
  for (double& bytes_per_s : carried)
    bytes_per_s +=
        static_cast<double>(run.urgent_bytes.bytes) / std::chrono::duration<double>(run.every).count();
  add_ratio(outcome, both.name + "/" + bulk.name, "GBps", median_of(ratios(carried, bulk.background)));
  return outcome;
}

}  // namespace

int priority_command(int argc, const char* const* argv) {
  Priority run;
  run.options.servers = 1;
  run.options.bytes = ByteSize{64 << 20};
  run.options.iters = 200;
  run.options.warmup = 5;
  Config config("bps-bench priority",
                "Times a small urgent tensor that is push_pulled beside bulk, alone, and the same on two raw "
                "sockets; in turns.");
  add_common_flags(config, run.options);
  config.add("urgent-bytes", run.urgent_bytes, "Size of the urgent tensor; --bytes is that of the bulk");
  config.add("every", run.every, "Time between two rounds of the urgent tensor");
  add_link_flags(config, run.options);
  add_library_flags(config, run.options);
  if (const auto status = config.parse_or_exit(argc, argv, Logger("bps-bench"))) return *status;
  return finish(run.options.json, measure(run));
}

}  // namespace bps::bench

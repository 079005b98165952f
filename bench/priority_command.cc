// priority: what a small urgent tensor has to wait behind bulk, and what the bulk loses by it.
#include <chrono>
#include <vector>

#include "bench/bootstrap.h"
#include "bench/priority_engine.h"
#include "bench/subcommands.h"

namespace bps::bench {
namespace {

// Rounds of a block: some seconds, so that starting and ending the bulk is a small part.
constexpr std::uint32_t kBlock = 50;

struct Priority {
  Options options;
  ByteSize urgent_bytes{64 * 1024};
  Duration every = std::chrono::milliseconds(50);
};

Side side(std::uint8_t engine, PriorityMode mode, const char* name, nlohmann::ordered_json settings) {
  Side out;
  out.engine = engine;
  out.mode = static_cast<std::uint8_t>(mode);
  out.series.name = name;
  out.series.settings = std::move(settings);
  return out;
}

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
                 percentile_difference(a.round_us, b.round_us, percent, kBlock));
}

Result<Outcome> measure(const Priority& run) {
  const Options& options = run.options;
  auto cluster = options.cluster();
  if (!cluster) return cluster.error();
  const std::size_t element = size_of(cluster->worker.dtype);
  if (run.urgent_bytes.bytes == 0 || run.urgent_bytes.bytes % element != 0) {
    return make_error(ErrorCode::invalid_argument, "--urgent-bytes must be whole elements, and not 0");
  }
  if (run.every <= Duration::zero())
    return make_error(ErrorCode::invalid_argument, "--every must be more than 0");
  cluster->worker.engines = {options.engine(EngineKind::priority), {.kind = EngineKind::raw_priority}};
  cluster->worker.echo_bytes = run.urgent_bytes.bytes;
  const auto settings = options.engine_settings();
  const auto sides = run_sides(
      *cluster,
      {side(0, PriorityMode::urgent, "urgent", settings), side(0, PriorityMode::bulk, "bulk", settings),
       side(0, PriorityMode::both, "urgent+bulk", settings), side(1, PriorityMode::urgent, "raw urgent", {}),
       side(1, PriorityMode::both, "raw urgent+bulk", {})},
      {.rounds = options.warmup, .block_rounds = kBlock, .period_ns = run.every.count()},
      {.rounds = options.iters, .block_rounds = kBlock, .period_ns = run.every.count()});
  if (!sides) return sides.error();
  Outcome outcome;
  for (const Side& each : *sides)
    add_line(outcome, run, each.series, each.mode != static_cast<std::uint8_t>(PriorityMode::bulk));
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

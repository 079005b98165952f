// memory: what servers hold at most, while rank 0 is on time and while it is late.
#include <charconv>
#include <chrono>

#include "bench/commands/race.h"
#include "bench/commands/subcommands.h"
#include "bench/stats/process_memory.h"

namespace bps::bench {
namespace {

// What a server may hold beside its partitions.
constexpr std::uint64_t kPerLane = 256 * 1024;
constexpr std::uint64_t kPerServer = 96ull << 20;

struct Memory {
  Options options;
  Duration late = std::chrono::seconds(1);
};

struct Case {
  std::string name;
  std::int64_t late_ns = 0;
  std::uint64_t base = 0;  // of all servers, before the workers join
  std::uint64_t peak = 0;  // of all servers
  Series series;
};

struct Sum {
  std::uint64_t resident = 0;
  std::uint64_t peak = 0;
};

Result<Sum> servers_memory(const Cluster& cluster) {
  Sum sum;
  for (const pid_t pid : cluster.server_pids()) {
    const auto memory = process_memory(pid);
    if (!memory) return memory.error();
    sum.resident += memory->resident;
    sum.peak += memory->peak;
  }
  return sum;
}

// The time in which a partition arrives.
std::int64_t partition_ns(const Options& options, const Series& on_time) {
  const auto partition = options.engine_settings()["partition_bytes"].get<double>();
  const double bytes = static_cast<double>(options.bytes.bytes) * options.tensors;
  const double seconds = percentile(on_time.round_us, 50) * 1e-6;
  return bytes > 0 ? static_cast<std::int64_t>(1e9 * seconds * std::min(1.0, partition / bytes)) : 0;
}

// A cluster of its own, because memory that is held once may be held for good.
Status run_case(const Options& options, Case& out) {
  auto race = Race::of(options);
  if (!race) return race.error();
  race->add(options.engine(EngineKind::pushpull), {out.name});
  Cluster cluster;
  if (Status status = cluster.start(race->cluster()); !status) return status;
  const auto base = servers_memory(cluster);
  if (!base) return base.error();
  auto sides = race->run_on(cluster, {.late_ns = out.late_ns});
  if (!sides) return std::move(sides).error();
  const auto now = servers_memory(cluster);
  if (!now) return now.error();
  out.base = base->resident;
  out.peak = now->peak;
  out.series = std::move(sides->front().series);
  return {};
}

void add(Outcome& outcome, const Options& options, std::uint64_t lanes, const Case& measured) {
  const std::uint64_t partitions = options.bytes.bytes * options.tensors;
  const auto more = static_cast<double>(measured.peak) - static_cast<double>(measured.base);
  const auto beside = static_cast<double>(kPerLane * lanes + kPerServer * options.servers);
  Line line;
  line["bench"] = "memory";
  line["case"] = measured.name;
  line["workers"] = options.workers;
  line["servers"] = options.servers;
  line["bytes"] = options.bytes.bytes;
  line["tensors"] = options.tensors;
  line["dtype"] = options.dtype;
  line["iters"] = measured.series.rounds;
  line["late_us"] = rounded(static_cast<double>(measured.late_ns) * 1e-3);
  line["p50_us"] = rounded(percentile(measured.series.round_us, 50));
  line["base_bytes"] = measured.base;
  line["peak_bytes"] = measured.peak;
  line["beside_bytes"] = beside;
  line["held"] = rounded(more / static_cast<double>(partitions));
  line["held_less_beside"] = rounded(std::max(0.0, more - beside) / static_cast<double>(partitions));
  line["verified"] = measured.series.wrong.empty();
  outcome.lines.push_back(std::move(line));
  note_wrong(outcome, measured.name, measured.series.wrong);
}

Result<Outcome> measure(const Memory& run) {
  const Options& options = run.options;
  std::uint64_t shards = 1;  // auto is one, unless a link is faster than those that can be made here
  std::from_chars(options.shards.data(), options.shards.data() + options.shards.size(), shards);
  const std::uint64_t lanes = options.workers * options.servers * shards;
  if (run.late < Duration::zero()) return make_error(ErrorCode::invalid_argument, "--late is negative");
  Outcome outcome;
  Case on_time{"on time"};
  if (Status status = run_case(options, on_time); !status) return std::move(status).error();
  Case partition{"late by a partition", partition_ns(options, on_time.series)};
  Case late{"late by " + to_string(run.late), run.late.count()};
  for (Case* each : {&partition, &late}) {
    if (Status status = run_case(options, *each); !status) return std::move(status).error();
  }
  for (const Case* each : {&on_time, &partition, &late})
    add(outcome, options, lanes, *each);
  return outcome;
}

}  // namespace

int memory_command(int argc, const char* const* argv) {
  Memory run;
  run.options.workers = 4;
  run.options.servers = 1;
  run.options.bytes = ByteSize{400'000'000};
  run.options.iters = 5;
  Config config(
      "bps-bench memory",
      "Measures the memory that servers hold at most while rank 0 is on time, late by a partition, and "
      "late by --late.");
  add_common_flags(config, run.options);
  add_tensor_flags(config, run.options);
  config.add("late", run.late, "How late rank 0 begins each round");
  add_library_flags(config, run.options);
  if (const auto status = config.parse_or_exit(argc, argv, Logger("bps-bench"))) return *status;
  return finish(run.options.json, measure(run));
}

}  // namespace bps::bench

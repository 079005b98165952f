// local: what the workers of one host need to sum among themselves.
#include "bench/commands/race.h"
#include "bench/commands/subcommands.h"

namespace bps::bench {
namespace {

Result<Outcome> run_local(Options options) {
  auto race = Race::of(options);
  if (!race) return race.error();
  options.servers = 0;  // none is started
  const auto add = [&](EngineKind kind, MemoryUse memory, const std::string& name) {
    EngineOptions engine = options.engine(kind);
    engine.memory = memory;
    race->add(engine, {name});
  };
  add(EngineKind::local, MemoryUse::user, "local");
  add(EngineKind::local, MemoryUse::allocated, "local[memory=allocated]");
  add(EngineKind::copy, MemoryUse::user, "memcpy");
  const auto measured = race->run();
  if (!measured) return measured.error();
  Outcome outcome;
  const Series& copy = measured->back().series;
  for (const Side& side : *measured)
    add_series(outcome, options, side.series);
  for (std::size_t i = 0; i < 2; ++i) {
    const Series& local = (*measured)[i].series;
    add_ratio(outcome, local.name + "/memcpy", "seconds", median_of(ratios(local.seconds, copy.seconds)));
    add_ratio(outcome, local.name + "/memcpy", "own_cpu_s_per_GB",
              median_of(ratios(local.own_cpu_seconds, copy.own_cpu_seconds)));
  }
  return outcome;
}

}  // namespace

int local_command(int argc, const char* const* argv) {
  Options options;
  Config config(
      "bps-bench local",
      "Times how the workers of one host sum a tensor among themselves in shared memory and hand the sum "
      "to all of them, without servers, in turns with a memcpy of the tensor in each worker.");
  config.add("bytes", options.bytes, "Size of the tensor, whole elements");
  add_worker_flags(config, options);
  config.add("partition-bytes", options.partition_bytes, "Partition size; not set: the library's default");
  if (const auto status = config.parse_or_exit(argc, argv, Logger("bps-bench"))) return *status;
  return finish(options.json, run_local(options));
}

}  // namespace bps::bench

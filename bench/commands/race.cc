#include "bench/commands/race.h"

#include <utility>

namespace bps::bench {

Race::Race(const Options& options, ClusterOptions cluster)
    : cluster_(std::move(cluster)), warmup_(options.warmup), iters_(options.iters) {}

Result<Race> Race::of(const Options& options) {
  auto cluster = options.cluster();
  if (!cluster) return std::move(cluster).error();
  return Race(options, std::move(*cluster));
}

void Race::add(const EngineOptions& engine, Series series, std::uint8_t mode) {
  cluster_.worker.engines.push_back(engine);
  add_mode(mode, std::move(series));
}

void Race::add_mode(std::uint8_t mode, Series series) {
  const auto engine = static_cast<std::uint8_t>(cluster_.worker.engines.size() - 1);
  sides_.push_back({.engine = engine, .mode = mode, .series = std::move(series)});
}

Result<std::vector<Side>> Race::run(const Turns& turns) {
  Cluster cluster;
  if (Status status = cluster.start(cluster_); !status) return std::move(status).error();
  return run_on(cluster, turns);
}

Result<std::vector<Side>> Race::run_on(Cluster& on, const Turns& turns) {
  Turns warmup = turns, timed = turns;
  warmup.rounds = warmup_;
  warmup.late_ns = 0;
  timed.rounds = iters_;
  return run_sides(on, cluster_.worker.engines, std::move(sides_), warmup, timed);
}

}  // namespace bps::bench

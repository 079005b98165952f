// What takes turns on a cluster that a command starts for it: sides, each with an engine in all workers.
//
// Owner: a command. Add what is to be measured, then run() once.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/cluster/measure.h"
#include "bench/commands/options.h"

namespace bps::bench {

class Race {
 public:
  // Errors: options that do not go together.
  static Result<Race> of(const Options& options);

  // A side with an engine of its own.
  void add(const EngineOptions& engine, Series series, std::uint8_t mode = 0);
  // A side that uses the engine of the side before it in another mode.
  void add_mode(std::uint8_t mode, Series series);

  // What all engines share, for what only this command wants of the workers.
  WorkerOptions& worker() { return cluster_.worker; }
  const ClusterOptions& cluster() const { return cluster_; }

  // --warmup rounds of each side, then --iters; the rest as in `turns`. The sides come back in the order in
  // which they were added.
  Result<std::vector<Side>> run(const Turns& turns = {});
  // The same on `on`, which was started with cluster().
  Result<std::vector<Side>> run_on(Cluster& on, const Turns& turns);

 private:
  Race(const Options& options, ClusterOptions cluster);

  ClusterOptions cluster_;
  std::uint64_t warmup_;
  std::uint64_t iters_;
  std::vector<Side> sides_;
};

}  // namespace bps::bench

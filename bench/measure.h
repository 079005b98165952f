// Blocks of rounds on all workers, measured; and what many of them add up to.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/cluster.h"
#include "proto/base/result.h"

namespace bps::bench {

struct Series {
  std::string name;                     // "pushpull", "floor", ...
  nlohmann::ordered_json settings;      // what it was run with, beside what all series share; flat
  std::vector<double> seconds;          // per block: from the first worker that began to the last that ended
  std::vector<double> cpu_seconds;      // per block: of the whole machine
  std::vector<double> idle_seconds;     // per block: of the whole machine
  std::vector<double> own_cpu_seconds;  // per block: of the processes of the benchmark
  std::vector<double> background;       // per block: bytes/s of one worker that moved beside the rounds
  std::vector<double> round_us;         // per round: of a single one all workers', in a block rank 0's
  std::uint64_t rounds = 0;
  std::string wrong;  // the first wrong result; empty: all were right
};

// Prepares, runs and checks a block; adds it to `series` unless that is null (warm-up; still checked).
Status measure_block(Cluster& cluster, const Request& block, Series* series, std::string& wrong);

// Lets all workers do `step` of an engine: from the first that began to the last that ended.
Result<double> measure_step(Cluster& cluster, std::uint8_t engine, Step step);

// One of those that take turns on a cluster.
struct Side {
  std::uint8_t engine = 0;  // its place in WorkerOptions::engines
  std::uint8_t mode = 0;
  Series series;
};

struct Turns {
  std::uint64_t rounds = 0;        // of each side
  std::uint32_t block_rounds = 1;  // 1: each is prepared and checked outside the timed part
  std::int64_t period_ns = 0;      // see Request
  std::int64_t late_ns = 0;        // see Request
};

// Starts a cluster and lets the sides take turns on it, block by block; who is first changes each time. First
// `warmup`, which is checked but not timed, then `timed`. The sides come back with their series.
Result<std::vector<Side>> run_sides(const ClusterOptions& options, std::vector<Side> sides,
                                    const Turns& warmup, const Turns& timed);

// The parts, for those who need them one by one.

// Joins and declares, once for each engine. Adds "join_ms" and "declare_ms" to the settings of sides that are
// no raw ones.
Status join_sides(Cluster& cluster, const std::vector<EngineOptions>& engines, std::vector<Side>& sides);

// Rounds of an engine are numbered through: the same object for all turns of a cluster.
class TurnTaker {
 public:
  explicit TurnTaker(Cluster& cluster) : cluster_(cluster) {}
  Status run(std::vector<Side>& sides, const Turns& turns, bool timed);

 private:
  Cluster& cluster_;
  std::vector<std::uint64_t> next_round_;  // by engine
};

}  // namespace bps::bench

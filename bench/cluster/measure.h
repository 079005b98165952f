// Blocks of rounds on all workers, measured; and what many of them add up to.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/cluster/cluster.h"
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

// Lets the sides take turns on a cluster that was started with their engines, and on which nobody has joined,
// block by block; who is first changes each time. First `warmup`, which is checked but not timed, then
// `timed`. The sides come back with their series; how long joining and declaring took is in the settings of
// those that are no raw ones
// ("join_ms", "declare_ms").
Result<std::vector<Side>> run_sides(Cluster& cluster, const std::vector<EngineOptions>& engines,
                                    std::vector<Side> sides, const Turns& warmup, const Turns& timed);

}  // namespace bps::bench

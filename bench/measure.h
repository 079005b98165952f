// One block of rounds on all workers, measured; and what many of them add up to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/cluster.h"
#include "proto/base/result.h"

namespace bps::bench {

struct Series {
  std::string name;                     // "pushpull", "floor", ...
  std::vector<double> seconds;          // per block: from the first worker that began to the last that ended
  std::vector<double> cpu_seconds;      // per block: of the whole machine
  std::vector<double> own_cpu_seconds;  // per block: of the processes of the benchmark
  std::vector<double> round_us;         // per round: of a single one all workers', in a block rank 0's
  std::uint64_t rounds = 0;
  std::string wrong;  // the first wrong result; empty: all were right
};

// Prepares, runs and checks a block; adds it to `series` unless that is null (warm-up; still checked).
Status measure_block(Cluster& cluster, const Request& block, Series* series, std::string& wrong);

}  // namespace bps::bench

// What each subcommand measures. Results are in the order in which they are printed.
#pragma once

#include <vector>

#include "bench/options.h"
#include "bench/report.h"

namespace bps::bench {

struct Outcome {
  std::vector<Series> series;
  std::vector<RatioLine> ratios;
};

Result<Outcome> run_pushpull(const Options& options);
Result<Outcome> run_latency(const Options& options);
Result<Outcome> run_floor(const Options& options);

}  // namespace bps::bench

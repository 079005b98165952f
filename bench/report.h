// What the user gets: JSON lines, or a table.
#pragma once

#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/options.h"
#include "bench/stats.h"

namespace bps::bench {

struct RatioLine {
  std::string of;       // "cpu_s_per_GB", "p50_us", ...
  std::string between;  // "pushpull/floor"
  Median value;         // low == high: no interval
};

// Writes all series, then the ratios, where `options.json` says.
Status write_report(const Options& options, const std::vector<Series>& series,
                    const std::vector<RatioLine>& ratios);

// The two forms.
std::string json_lines(const Options& options, const std::vector<Series>& series,
                       const std::vector<RatioLine>& ratios);
std::string table(const Options& options, const std::vector<Series>& series,
                  const std::vector<RatioLine>& ratios);

}  // namespace bps::bench

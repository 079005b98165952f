#include "bench/report.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

namespace bps::bench {
namespace {

constexpr double kGiga = 1e9;

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

struct Summary {
  double algbw_GBps = 0;
  double p50_us = 0;
  double p99_us = 0;
  double cpu_s_per_GB = 0;
  double own_cpu_s_per_GB = 0;
};

Summary summarize(const Options& options, const Series& series) {
  const double tensor_bytes = static_cast<double>(options.bytes.bytes) * static_cast<double>(series.rounds);
  Summary summary;
  const double seconds = sum(series.seconds);
  if (seconds > 0) summary.algbw_GBps = tensor_bytes / seconds / kGiga;
  summary.p50_us = percentile(series.round_us, 50);
  summary.p99_us = percentile(series.round_us, 99);
  summary.cpu_s_per_GB = sum(series.cpu_seconds) / (tensor_bytes * options.workers / kGiga);
  summary.own_cpu_s_per_GB = sum(series.own_cpu_seconds) / (tensor_bytes * options.workers / kGiga);
  return summary;
}

// Four significant digits: what lies behind them is noise.
double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return 0;
  const double scale = std::pow(10, 3 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

}  // namespace

std::string json_lines(const Options& options, const std::vector<Series>& series,
                       const std::vector<RatioLine>& ratio_lines) {
  std::string out;
  for (const Series& s : series) {
    const Summary summary = summarize(options, s);
    nlohmann::ordered_json line;
    line["bench"] = s.name;
    line["workers"] = options.workers;
    line["servers"] = options.servers;
    line["bytes"] = options.bytes.bytes;
    line["dtype"] = options.dtype;
    line["iters"] = s.rounds;
    line["algbw_GBps"] = rounded(summary.algbw_GBps);
    line["p50_us"] = rounded(summary.p50_us);
    line["p99_us"] = rounded(summary.p99_us);
    line["cpu_s_per_GB"] = rounded(summary.cpu_s_per_GB);
    line["verified"] = s.wrong.empty();
    line["own_cpu_s_per_GB"] = rounded(summary.own_cpu_s_per_GB);
    out += line.dump() + "\n";
  }
  for (const RatioLine& ratio : ratio_lines) {
    nlohmann::ordered_json line;
    line["bench"] = "ratio";
    line["between"] = ratio.between;
    line["of"] = ratio.of;
    line["value"] = rounded(ratio.value.value);
    line["low"] = rounded(ratio.value.low);
    line["high"] = rounded(ratio.value.high);
    out += line.dump() + "\n";
  }
  return out;
}

std::string table(const Options& options, const std::vector<Series>& series,
                  const std::vector<RatioLine>& ratio_lines) {
  std::string out =
      fmt::format("{} workers, {} servers, {} of {}\n\n{:<10} {:>8} {:>12} {:>12} {:>12} {:>10} {:>10}  {}\n",
                  options.workers, options.servers, to_string(options.bytes), options.dtype, "", "rounds",
                  "GB/s", "p50 us", "p99 us", "CPU s/GB", "own s/GB", "verified");
  for (const Series& s : series) {
    const Summary summary = summarize(options, s);
    out += fmt::format("{:<10} {:>8} {:>12.4g} {:>12.1f} {:>12.1f} {:>10.3f} {:>10.3f}  {}\n", s.name,
                       s.rounds, summary.algbw_GBps, summary.p50_us, summary.p99_us, summary.cpu_s_per_GB,
                       summary.own_cpu_s_per_GB, s.wrong.empty() ? "yes" : "NO: " + s.wrong);
  }
  for (const RatioLine& ratio : ratio_lines) {
    out += fmt::format("{} {}: {:.3f}", ratio.between, ratio.of, ratio.value.value);
    if (ratio.value.low < ratio.value.high)
      out += fmt::format(" ({:.3f} to {:.3f})", ratio.value.low, ratio.value.high);
    out += "\n";
  }
  return out;
}

Status write_report(const Options& options, const std::vector<Series>& series,
                    const std::vector<RatioLine>& ratio_lines) {
  const std::string text =
      options.json.empty() ? table(options, series, ratio_lines) : json_lines(options, series, ratio_lines);
  if (options.json.empty() || options.json == "-") {
    if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
      return os_error("cannot write the result to stdout", errno);
    }
    return {};
  }
  std::ofstream file(options.json);
  file << text << std::flush;
  if (!file) return os_error("cannot write " + options.json, errno);
  return {};
}

}  // namespace bps::bench

#include "bench/commands/report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <numeric>

#include "bench/commands/link_limit.h"

namespace bps::bench {
namespace {

constexpr double kGiga = 1e9;
constexpr std::size_t kFewKeys = 8;  // fit in a row

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// As it stands in a table: text without quotes, yes and no.
std::string shown(const nlohmann::ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "NO";
  return value.dump();
}

bool same_keys(const Line& a, const Line& b) {
  return a.size() == b.size() && std::equal(a.items().begin(), a.items().end(), b.items().begin(),
                                            [](const auto& x, const auto& y) { return x.key() == y.key(); });
}

// Each line is a column.
std::string columns(const std::vector<Line>& lines, std::size_t begin, std::size_t end) {
  std::string out;
  std::vector<std::size_t> widths;
  for (std::size_t i = begin; i < end; ++i) {
    std::size_t width = 0;
    for (const auto& item : lines[i].items())
      width = std::max(width, shown(item.value()).size());
    widths.push_back(width);
  }
  for (const auto& item : lines[begin].items()) {
    out += fmt::format("{:<18}", item.key());
    for (std::size_t i = begin; i < end; ++i)
      out += fmt::format("  {:>{}}", shown(lines[i].at(item.key())), widths[i - begin]);
    out += "\n";
  }
  return out;
}

// Each line is a row.
std::string rows(const std::vector<Line>& lines, std::size_t begin, std::size_t end) {
  std::string head;
  std::vector<std::string> out(end - begin);
  for (const auto& item : lines[begin].items()) {
    std::size_t width = item.key().size();
    for (std::size_t i = begin; i < end; ++i)
      width = std::max(width, shown(lines[i].at(item.key())).size());
    head += fmt::format("{:<{}}  ", item.key(), width);
    for (std::size_t i = begin; i < end; ++i)
      out[i - begin] += fmt::format("{:<{}}  ", shown(lines[i].at(item.key())), width);
  }
  for (const std::string& row : out)
    head += "\n" + row;
  return head + "\n";
}

}  // namespace

double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return 0;
  const double scale = std::pow(10, 3 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

void note_wrong(Outcome& outcome, const std::string& what, const std::string& wrong) {
  if (!wrong.empty() && outcome.wrong.empty()) outcome.wrong = what + " gave a wrong result: " + wrong;
}

void add_settings(Line& line, const Series& series) {
  for (const auto& item : series.settings.items()) {
    if (line.contains(item.key())) continue;
    line[item.key()] = item.value().is_number_float() ? Line(rounded(item.value())) : item.value();
  }
}

void add_series(Outcome& outcome, const Options& options, const Series& series, ExchangeUse use) {
  const std::uint64_t bytes = options.bytes.bytes * options.tensors;
  const double one_worker = static_cast<double>(bytes) * static_cast<double>(series.rounds) / kGiga;
  const double all_workers = one_worker * options.workers;
  const double seconds = sum(series.seconds);
  const double busy = sum(series.cpu_seconds);
  Line line;
  line["bench"] = series.name;
  line["workers"] = options.workers;
  line["servers"] = options.servers;
  line["bytes"] = options.bytes.bytes;
  line["dtype"] = options.dtype;
  line["iters"] = series.rounds;
  line["algbw_GBps"] = rounded(one_worker / seconds);
  line["p50_us"] = rounded(percentile(series.round_us, 50));
  line["p99_us"] = rounded(percentile(series.round_us, 99));
  line["cpu_s_per_GB"] = rounded(busy / all_workers);
  line["verified"] = series.wrong.empty();
  line["own_cpu_s_per_GB"] = rounded(sum(series.own_cpu_seconds) / all_workers);
  line["min_us"] = rounded(percentile(series.round_us, 0));
  line["max_us"] = rounded(percentile(series.round_us, 100));
  const Median typical = median_of(series.round_us);
  line["p50_low_us"] = rounded(typical.low);
  line["p50_high_us"] = rounded(typical.high);
  line["idle"] = rounded(idle_share(series));
  line["tensors"] = options.tensors;
  line["link_bps"] = options.link ? options.link->bits_per_second : 0;
  line["colocated"] = options.colocated;
  const auto goodput = goodput_of(options);
  if (const auto s_per_byte = goodput ? tstar_s_per_byte(options, *goodput, use) : std::nullopt) {
    const double tstar_s = *s_per_byte * static_cast<double>(bytes);
    line["tstar_s"] = rounded(tstar_s);
    line["t_over_tstar"] = tstar_s > 0 ? rounded(percentile(series.round_us, 50) * 1e-6 / tstar_s) : 0;
  }
  add_settings(line, series);
  outcome.lines.push_back(std::move(line));
  note_wrong(outcome, series.name, series.wrong);
}

double idle_share(const Series& series) {
  const double idle = sum(series.idle_seconds);
  return idle / (sum(series.cpu_seconds) + idle);
}

void add_comparison(Outcome& outcome, const char* bench, const std::string& between, const std::string& of,
                    const Median& value) {
  Line line;
  line["bench"] = bench;
  line["between"] = between;
  line["of"] = of;
  line["value"] = rounded(value.value);
  line["low"] = rounded(value.low);
  line["high"] = rounded(value.high);
  outcome.lines.push_back(std::move(line));
}

std::string json_lines(const Outcome& outcome) {
  std::string out;
  for (const Line& line : outcome.lines)
    out += line.dump() + "\n";
  return out;
}

std::string table(const Outcome& outcome) {
  const std::vector<Line>& lines = outcome.lines;
  std::string out;
  for (std::size_t begin = 0; begin < lines.size();) {
    std::size_t end = begin + 1;
    while (end < lines.size() && same_keys(lines[begin], lines[end]))
      ++end;
    const bool few = lines[begin].size() <= kFewKeys;
    out += (begin == 0 ? "" : "\n") + (few ? rows(lines, begin, end) : columns(lines, begin, end));
    begin = end;
  }
  return outcome.wrong.empty() ? out : out + "\n" + outcome.wrong + "\n";
}

Status write_report(const std::string& json, const Outcome& outcome) {
  const std::string text = json.empty() ? table(outcome) : json_lines(outcome);
  if (json.empty() || json == "-") {
    if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
      return os_error("cannot write the result to stdout", errno);
    }
    return {};
  }
  std::ofstream file(json);
  file << text << std::flush;
  if (!file) return os_error("cannot write " + json, errno);
  return {};
}

}  // namespace bps::bench

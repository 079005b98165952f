// What the user gets: JSON lines, or tables.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/cluster/measure.h"
#include "bench/commands/options.h"
#include "bench/stats/stats.h"
#include "proto/base/result.h"

namespace bps::bench {

// One measurement: a flat object; keys keep their order. The first key is "bench", which says what the others
// are.
using Line = nlohmann::ordered_json;

struct Outcome {
  std::vector<Line> lines;
  std::string wrong;  // the first wrong result, and of what; empty: all were right
};

// Remembers the first wrong result of all, and of `what`; `wrong` empty: all were right.
void note_wrong(Outcome& outcome, const std::string& what, const std::string& wrong);

// Adds the settings of a series to its line, where the line does not say them already.
void add_settings(Line& line, const Series& series);

// Adds what a series of rounds has come to.
// `use`: what t* is of, where it is known.
void add_series(Outcome& outcome, const Options& options, const Series& series,
                ExchangeUse use = ExchangeUse::push_pull);

// Adds how two series compare: `between` says which ("pushpull/floor"), `of` in what. low == high: no
// interval. `bench`: "ratio" or "difference".
void add_comparison(Outcome& outcome, const char* bench, const std::string& between, const std::string& of,
                    const Median& value);
inline void add_ratio(Outcome& outcome, const std::string& between, const std::string& of,
                      const Median& value) {
  add_comparison(outcome, "ratio", between, of, value);
}

// The part of the machine's CPU time that nobody used while the series ran.
double idle_share(const Series& series);

// Writes JSON lines to the file `json` ("-" is stdout), or tables to stdout if that is empty.
Status write_report(const std::string& json, const Outcome& outcome);

// The two forms. In a table a line is a column, or a row if it has few keys; lines with the same keys stand
// together.
std::string json_lines(const Outcome& outcome);
std::string table(const Outcome& outcome);

// Four significant digits: what lies behind them is noise. 0 for what is no number.
double rounded(double value);

}  // namespace bps::bench

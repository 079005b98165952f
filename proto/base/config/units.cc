#include "proto/base/config/units.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>

namespace bps {
namespace {

struct Unit {
  std::string_view name;  // lower case
  std::uint64_t factor;
  std::string_view shown;
};

constexpr std::uint64_t kKi = 1024;
constexpr std::array<Unit, 9> kByteUnits = {{{"tib", kKi* kKi* kKi* kKi, "TiB"},
                                             {"tb", 1'000'000'000'000, "TB"},
                                             {"gib", kKi* kKi* kKi, "GiB"},
                                             {"gb", 1'000'000'000, "GB"},
                                             {"mib", kKi* kKi, "MiB"},
                                             {"mb", 1'000'000, "MB"},
                                             {"kib", kKi, "KiB"},
                                             {"kb", 1'000, "KB"},
                                             {"b", 1, "B"}}};
constexpr std::array<Unit, 6> kTimeUnits = {{{"h", 3'600'000'000'000, "h"},
                                             {"min", 60'000'000'000, "min"},
                                             {"s", 1'000'000'000, "s"},
                                             {"ms", 1'000'000, "ms"},
                                             {"us", 1'000, "us"},
                                             {"ns", 1, "ns"}}};
constexpr std::array<Unit, 5> kRateUnits = {{{"tbit", 1'000'000'000'000, "tbit"},
                                             {"gbit", 1'000'000'000, "gbit"},
                                             {"mbit", 1'000'000, "mbit"},
                                             {"kbit", 1'000, "kbit"},
                                             {"bit", 1, "bit"}}};

struct Quantity {
  std::string number;
  std::string unit;  // lower case
};

Quantity split(std::string_view text) {
  const auto end =
      std::find_if_not(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) || c == '.'; });
  Quantity result{std::string(text.begin(), end), std::string(end, text.end())};
  std::transform(result.unit.begin(), result.unit.end(), result.unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

// Whole numbers stay exact; fractions ("1.5") go through double.
std::optional<std::uint64_t> scale(const std::string& number, std::uint64_t factor, std::uint64_t max) {
  const char* const first = number.data();
  const char* const last = first + number.size();
  std::uint64_t whole = 0;
  if (const auto parsed = std::from_chars(first, last, whole);
      parsed.ec == std::errc{} && parsed.ptr == last) {
    if (whole > max / factor) return std::nullopt;
    return whole * factor;
  }
  double fraction = 0;
  const auto parsed = std::from_chars(first, last, fraction);
  if (parsed.ec != std::errc{} || parsed.ptr != last) return std::nullopt;
  const double scaled = std::round(fraction * static_cast<double>(factor));
  if (!(scaled < static_cast<double>(max))) return std::nullopt;
  return static_cast<std::uint64_t>(scaled);
}

struct Rules {
  std::span<const Unit> units;
  std::string_view what;     // "a size"
  std::string_view example;  // "4GiB, 100MB or 4096"
  bool unit_needed = false;
  std::uint64_t max = UINT64_MAX;
};

Result<std::uint64_t> parse(std::string_view text, const Rules& rules) {
  const auto bad = [&] {
    return make_error(ErrorCode::invalid_argument,
                      "'" + std::string(text) + "' is not " + std::string(rules.what),
                      "write it like " + std::string(rules.example));
  };
  const Quantity quantity = split(text);
  std::uint64_t factor = 1;
  if (!quantity.unit.empty()) {
    const auto unit = std::find_if(rules.units.begin(), rules.units.end(),
                                   [&](const Unit& candidate) { return candidate.name == quantity.unit; });
    if (unit == rules.units.end()) return bad();
    factor = unit->factor;
  } else if (rules.unit_needed && quantity.number != "0") {
    return bad();
  }
  const auto value = scale(quantity.number, factor, rules.max);
  if (!value) return bad();
  return *value;
}

std::string show(std::uint64_t value, std::span<const Unit> units) {
  const Unit* best = &units.back();
  if (value != 0) {
    for (const Unit& unit : units) {
      if (value % unit.factor == 0) {
        best = &unit;
        break;
      }
    }
  }
  return std::to_string(value / best->factor) + std::string(best->shown);
}

}  // namespace

Result<ByteSize> parse_byte_size(std::string_view text) {
  auto value = parse(text, {.units = kByteUnits, .what = "a size", .example = "4GiB, 100MB or 4096"});
  if (!value) return std::move(value).error();
  return ByteSize{*value};
}

ScaledBytes scaled(ByteSize size, std::span<const char* const> units) {
  double value = static_cast<double>(size.bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < units.size(); ++unit)
    value /= 1024;
  return {value, units[unit]};
}

std::string rounded(ByteSize size) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  if (size.bytes < 10 * 1024) return fmt::format("{} bytes", size.bytes);
  const ScaledBytes shown = scaled(size, kUnits);
  return fmt::format("{:.1f} {}", shown.value, shown.unit);
}

std::string to_string(ByteSize size) { return show(size.bytes, kByteUnits); }

Result<Duration> parse_duration(std::string_view text) {
  auto value = parse(text, {.units = kTimeUnits,
                            .what = "a duration",
                            .example = "500ms, 30s or 5min",
                            .unit_needed = true,
                            .max = INT64_MAX});
  if (!value) return std::move(value).error();
  return Duration(static_cast<std::int64_t>(*value));
}

std::string to_string(Duration duration) {
  if (duration.count() < 0) return "-" + to_string(-duration);
  return duration.count() == 0 ? "0s" : show(static_cast<std::uint64_t>(duration.count()), kTimeUnits);
}

Result<BitRate> parse_bit_rate(std::string_view text) {
  auto value = parse(text, {.units = kRateUnits, .what = "a rate", .example = "500mbit or 25gbit"});
  if (!value) return std::move(value).error();
  return BitRate{*value};
}

std::string to_string(BitRate rate) { return show(rate.bits_per_second, kRateUnits); }

std::string counted(std::uint64_t count, std::string_view what) {
  return std::to_string(count) + " " + std::string(what) + (count == 1 ? "" : "s");
}

Result<bool> parse_bool(std::string_view text) {
  std::string lower = split(text).number + split(text).unit;
  for (const std::string_view yes : {"true", "yes", "on", "1"}) {
    if (lower == yes) return true;
  }
  for (const std::string_view no : {"false", "no", "off", "0"}) {
    if (lower == no) return false;
  }
  return make_error(ErrorCode::invalid_argument, "'" + std::string(text) + "' is neither true nor false",
                    "write true or false");
}

}  // namespace bps

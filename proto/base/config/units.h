// Quantities as users write them: "4GiB", "100MB", "500ms", "25gbit".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "proto/base/loop/event_loop.h"
#include "proto/base/result.h"

namespace bps {

// "4GiB" = 4 * 2^30, "100MB" = 100 * 10^6, "4096" = bytes. Case does not matter; "64K" and the like are
// refused because half of the readers take them for the other.
struct ByteSize {
  std::uint64_t bytes = 0;
  friend bool operator==(const ByteSize&, const ByteSize&) = default;
};
Result<ByteSize> parse_byte_size(std::string_view text);
std::string to_string(ByteSize size);  // exact: the largest unit that divides it
std::string rounded(ByteSize size);    // as people read it: "1.5 GiB", "300 bytes"
// In the largest of `units` of which there is one: names of the bytes, of 1024 of them, and so on.
struct ScaledBytes {
  double value = 0;
  const char* unit = "";
};
ScaledBytes scaled(ByteSize size, std::span<const char* const> units);

// "250us", "500ms", "30s", "5min", "1h"; a bare number is refused, except 0.
Result<Duration> parse_duration(std::string_view text);
std::string to_string(Duration duration);

// Bits per second, decimal, as tc and ethtool say them: "500mbit", "25gbit", "1000" = bit/s.
struct BitRate {
  std::uint64_t bits_per_second = 0;
  friend bool operator==(const BitRate&, const BitRate&) = default;
};
Result<BitRate> parse_bit_rate(std::string_view text);
std::string to_string(BitRate rate);

// "1 job", "2 jobs"
std::string counted(std::uint64_t count, std::string_view what);

// "true", "yes", "on", "1" and their opposites.
Result<bool> parse_bool(std::string_view text);

}  // namespace bps

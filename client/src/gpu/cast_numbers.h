// For tests: numbers that are hard to cast, and what becomes of them by definition.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include "client/src/gpu/cast_kernels.h"
#include "proto/reduce/oracle.h"

namespace bps::testing {

using reduce::oracle::Format;

inline const Format& format_of(Cast cast) {
  return cast == Cast::bf16 ? reduce::oracle::kBF16 : reduce::oracle::kF16;
}
inline bool is_nan(std::uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }

// A NaN stays one, quiet, with its sign and the upper bits of what it was.
inline std::uint16_t rounded(Cast cast, std::uint32_t bits) {
  if (is_nan(bits)) {
    const auto sign = bits >> 16 & 0x8000;
    const auto mantissa = bits & 0x7fffff;
    return static_cast<std::uint16_t>(cast == Cast::bf16 ? sign | 0x7f80 | mantissa >> 16 | 0x40
                                                         : sign | 0x7c00 | mantissa >> 13 | 0x200);
  }
  const auto value = static_cast<double>(std::bit_cast<float>(bits));
  return static_cast<std::uint16_t>(reduce::oracle::encode(value, format_of(cast)));
}

inline std::vector<std::uint32_t> interesting_numbers() {
  std::vector<std::uint32_t> all;
  const auto add = [&](std::uint32_t bits) { all.insert(all.end(), {bits, bits ^ 0x80000000}); };
  // Each half's neighbours and ties: of bf16 in every exponent, of f16 where it has numbers.
  for (std::uint32_t half = 0; half < 0x8000; half += 61) {
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      add(half << 16 | low);
    const auto f16 = static_cast<float>(reduce::oracle::decode(half, reduce::oracle::kF16));
    const auto bits = std::bit_cast<std::uint32_t>(f16);
    for (const std::uint32_t more : {0x0fffu, 0x1000u, 0x1001u})
      add(bits + more);
  }
  for (const std::uint32_t bits :
       {0u, 1u, 0x007fffffu, 0x00800000u, 0x33000000u, 0x33000001u, 0x387fc000u, 0x387fe000u, 0x38800000u,
        0x477fe000u, 0x477fefffu, 0x477ff000u, 0x7f7fffffu, 0x7f7f8000u, 0x7f800000u, 0x7f800001u,
        0x7fbfffffu, 0x7fc00000u, 0x7fffffffu})
    add(bits);
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i)
    add(static_cast<std::uint32_t>(random()));
  return all;
}

}  // namespace bps::testing

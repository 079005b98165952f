// What the kernels must give, one element at a time and as slow as it is plain: for tests and benchmarks,
// which compare with it bit for bit. Pure.
//
// Elements are their bits in a u64. f16 and bf16 go through double, from the definition of the formats. Sums,
// products and quotients of two f32 rounded from double are the correctly rounded ones: double has more than
// twice the digits.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "proto/base/dtype.h"

namespace bps::reduce::oracle {

struct Format {
  int mantissa_bits;
  int min_exponent;  // of normal numbers
  int max_exponent;
  int bits;
};
inline constexpr Format kF16{10, -14, 15, 16};
inline constexpr Format kBF16{7, -126, 127, 16};

inline bool is_nan_bits(std::uint64_t bits, const Format& f) {
  const std::uint64_t magnitude = bits & ((1ull << (f.bits - 1)) - 1);
  const std::uint64_t infinity = ((1ull << (f.bits - 1 - f.mantissa_bits)) - 1) << f.mantissa_bits;
  return magnitude > infinity;
}

inline double decode(std::uint64_t bits, const Format& f) {
  const std::uint64_t mantissa = bits & ((1ull << f.mantissa_bits) - 1);
  const std::uint64_t exponent_mask = (1ull << (f.bits - 1 - f.mantissa_bits)) - 1;
  const std::uint64_t exponent = (bits >> f.mantissa_bits) & exponent_mask;
  double value = 0;
  if (exponent == exponent_mask) {
    value =
        mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<double>(mantissa), f.min_exponent - f.mantissa_bits);
  } else {
    value = std::ldexp(static_cast<double>(mantissa + (1ull << f.mantissa_bits)),
                       static_cast<int>(exponent) - 1 + f.min_exponent - f.mantissa_bits);
  }
  return (bits >> (f.bits - 1)) != 0 ? -value : value;
}

inline std::uint64_t encode(double value, const Format& f) {
  const std::uint64_t sign = std::signbit(value) ? 1ull << (f.bits - 1) : 0;
  const std::uint64_t infinity = ((1ull << (f.bits - 1 - f.mantissa_bits)) - 1) << f.mantissa_bits;
  if (std::isnan(value)) return infinity | (1ull << (f.mantissa_bits - 1));
  value = std::fabs(value);
  if (std::isinf(value)) return sign | infinity;
  if (value == 0) return sign;
  const int exponent = std::max(std::ilogb(value), f.min_exponent);
  const double units = std::nearbyint(std::ldexp(value, f.mantissa_bits - exponent));
  // The encoding counts in units from 0 upwards; a mantissa that rounds up carries into the exponent.
  const auto biased = static_cast<std::uint64_t>(exponent - f.min_exponent) << f.mantissa_bits;
  return sign | std::min(infinity, biased + static_cast<std::uint64_t>(units));
}

inline double decode(DType dtype, std::uint64_t bits) {
  switch (dtype) {
    case DType::f32: return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    case DType::f64: return std::bit_cast<double>(bits);
    case DType::f16: return decode(bits, kF16);
    default: return decode(bits, kBF16);
  }
}

inline std::uint64_t encode(DType dtype, double value) {
  switch (dtype) {
    case DType::f32:
      return std::isnan(value) ? 0x7FC00000u : std::bit_cast<std::uint32_t>(static_cast<float>(value));
    case DType::f64: return std::isnan(value) ? 0x7FF8000000000000u : std::bit_cast<std::uint64_t>(value);
    case DType::f16: return encode(value, kF16);
    default: return encode(value, kBF16);
  }
}

inline double combine(Operation operation, double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  switch (operation) {
    case Operation::min: return b < a ? b : a;
    case Operation::max: return a < b ? b : a;
    case Operation::product: return a * b;
    default: return a + b;
  }
}

inline std::uint64_t float_oracle(DType dtype, Operation operation, std::span<const std::uint64_t> in,
                                  std::uint32_t weight) {
  const auto rounded = [&](double value) {
    return dtype == DType::f64 ? value : static_cast<double>(static_cast<float>(value));
  };
  const bool divide = operation == Operation::average && weight > 1;
  if (in.size() == 1 && !divide) return in[0];
  double sum = decode(dtype, in[0]);
  for (std::size_t k = 1; k < in.size(); ++k) {
    sum = rounded(combine(operation, sum, decode(dtype, in[k])));
  }
  if (divide) sum = rounded(sum / rounded(static_cast<double>(weight)));
  return encode(dtype, sum);
}

__extension__ typedef __int128 Wide;

inline std::uint64_t integer_oracle(DType dtype, Operation operation, std::span<const std::uint64_t> in,
                                    std::uint32_t weight) {
  const auto element = [&](std::uint64_t bits) -> std::int64_t {
    switch (dtype) {
      case DType::i8: return static_cast<std::int8_t>(bits);
      case DType::u8: return static_cast<std::uint8_t>(bits);
      case DType::i32: return static_cast<std::int32_t>(bits);
      default: return static_cast<std::int64_t>(bits);
    }
  };
  Wide sum = element(in[0]);
  std::uint64_t product = in[0], both = in[0], either = in[0], odd = in[0];
  std::int64_t least = element(in[0]), most = element(in[0]);
  for (std::size_t k = 1; k < in.size(); ++k) {
    sum += element(in[k]);
    product *= static_cast<std::uint64_t>(element(in[k]));
    both &= in[k];
    either |= in[k];
    odd ^= in[k];
    least = std::min(least, element(in[k]));
    most = std::max(most, element(in[k]));
  }
  std::uint64_t result = 0;
  switch (operation) {
    case Operation::min: result = static_cast<std::uint64_t>(least); break;
    case Operation::max: result = static_cast<std::uint64_t>(most); break;
    case Operation::product: result = product; break;
    case Operation::bit_and: result = both; break;
    case Operation::bit_or: result = either; break;
    case Operation::bit_xor: result = odd; break;
    case Operation::average:
      if (dtype == DType::i64) sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum));
      result = static_cast<std::uint64_t>(sum / std::max(weight, 1u));
      break;
    default: result = static_cast<std::uint64_t>(sum); break;
  }
  const std::size_t bits = 8 * size_of(dtype);
  return bits == 64 ? result : result & ((1ull << bits) - 1);
}

// The result of a round in which in[0], in[1], ... were combined in this order.
inline std::uint64_t reduced(DType dtype, Operation operation, std::span<const std::uint64_t> in,
                             std::uint32_t weight) {
  return is_float(dtype) ? float_oracle(dtype, operation, in, weight)
                         : integer_oracle(dtype, operation, in, weight);
}

inline std::uint64_t element(DType dtype, const std::byte* data, std::size_t index) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, data + index * size_of(dtype), size_of(dtype));
  return bits;
}

inline void set_element(DType dtype, std::byte* data, std::size_t index, std::uint64_t bits) {
  std::memcpy(data + index * size_of(dtype), &bits, size_of(dtype));
}

}  // namespace bps::reduce::oracle

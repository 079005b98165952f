#include "tests/sim/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "proto/base/assert.h"

namespace bps::sim {
namespace {

template <class T>
T element(const std::vector<std::byte>& raw, std::size_t index) {
  T value;
  std::memcpy(&value, raw.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void put(std::vector<std::byte>& raw, std::size_t index, T value) {
  std::memcpy(raw.data() + index * sizeof(T), &value, sizeof(T));
}

template <class T>
T combine(Operation operation, T a, T b) {
  if (operation == Operation::min || operation == Operation::max) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    }
    return operation == Operation::min ? (b < a ? b : a) : (b > a ? b : a);
  }
  if constexpr (std::is_integral_v<T>) {
    using Wrapping = std::make_unsigned_t<T>;
    const auto x = static_cast<Wrapping>(a), y = static_cast<Wrapping>(b);
    switch (operation) {
      case Operation::product: return static_cast<T>(x * y);
      case Operation::bit_and: return static_cast<T>(x & y);
      case Operation::bit_or: return static_cast<T>(x | y);
      case Operation::bit_xor: return static_cast<T>(x ^ y);
      default: return static_cast<T>(x + y);
    }
  } else {
    return operation == Operation::product ? a * b : a + b;
  }
}

template <class T>
T canonical(T value) {
  return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
}

// Integers: everything in 64 bits, cut to size at the end; only an i64 average can have wrapped before.
template <class T>
std::vector<std::byte> reduce_integers(Operation operation, std::span<const std::vector<std::byte>> inputs,
                                       std::size_t weight) {
  std::vector<std::byte> out(inputs.front().size());
  for (std::size_t i = 0; i < out.size() / sizeof(T); ++i) {
    std::int64_t sum = element<T>(inputs[0], i);
    for (std::size_t r = 1; r < inputs.size(); ++r) {
      sum = combine<std::int64_t>(operation, sum, element<T>(inputs[r], i));
    }
    if (operation == Operation::average) sum /= static_cast<std::int64_t>(weight);
    put(out, i, static_cast<T>(sum));
  }
  return out;
}

template <class T, class Widen, class Narrow>
std::vector<std::byte> reduce_floats(Operation operation, std::span<const std::vector<std::byte>> inputs,
                                     std::size_t weight, std::span<const Scale> scales,
                                     std::size_t element_bytes, Widen widen, Narrow narrow) {
  std::vector<std::byte> out(inputs.front().size());
  double shares = 0;
  for (const Scale& scale : scales)
    shares += scale.share;
  const T divisor = scales.empty() ? static_cast<T>(weight) : static_cast<T>(shares);
  const auto given = [&](std::size_t r, std::size_t i) {
    const T value = widen(inputs[r], i);
    return scales.empty() ? value : static_cast<T>(value * static_cast<T>(scales[r].factor));
  };
  for (std::size_t i = 0; i < out.size() / element_bytes; ++i) {
    T sum = given(0, i);
    for (std::size_t r = 1; r < inputs.size(); ++r)
      sum = combine<T>(operation, sum, given(r, i));
    if (operation == Operation::average) sum /= divisor;
    if (!scales.empty()) sum *= static_cast<T>(scales[0].postscale);
    narrow(out, i, canonical(sum));
  }
  return out;
}

std::vector<std::byte> reduce_16(int fraction_bits, Operation operation,
                                 std::span<const std::vector<std::byte>> inputs, std::size_t weight,
                                 std::span<const Scale> scales) {
  return reduce_floats<float>(
      operation, inputs, weight, scales, 2,
      [=](const auto& raw, std::size_t i) { return widen_16(element<std::uint16_t>(raw, i), fraction_bits); },
      [=](auto& raw, std::size_t i, float value) { put(raw, i, narrow_16(value, fraction_bits)); });
}

template <class T>
std::vector<std::byte> reduce_native(Operation operation, std::span<const std::vector<std::byte>> inputs,
                                     std::size_t weight, std::span<const Scale> scales) {
  return reduce_floats<T>(
      operation, inputs, weight, scales, sizeof(T),
      [](const auto& raw, std::size_t i) { return element<T>(raw, i); },
      [](auto& raw, std::size_t i, T value) { put(raw, i, value); });
}

}  // namespace

float widen_16(std::uint16_t bits, int fraction_bits) {
  const int exponent_bits = 15 - fraction_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    if (fraction != 0) return std::numeric_limits<float>::quiet_NaN();
    return static_cast<float>(sign) * std::numeric_limits<float>::infinity();
  }
  const double magnitude = exponent == 0
                               ? std::ldexp(fraction, 1 - bias - fraction_bits)
                               : std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
  return static_cast<float>(sign * magnitude);
}

std::uint16_t narrow_16(float value, int fraction_bits) {
  const int exponent_bits = 15 - fraction_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto infinity = static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << fraction_bits);
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | (1 << (fraction_bits - 1)));
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude == 0) return sign;
  int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  // How many units of the last place: nearest, ties to even, exact in double.
  auto units = static_cast<long>(std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent)));
  if (units == 2L << fraction_bits) {
    units /= 2;
    ++exponent;
  }
  if (exponent > bias) return static_cast<std::uint16_t>(sign | infinity);
  // A denormal has fewer units than 1 << fraction_bits and the exponent field 0; the sum below gets both
  // right.
  const long field = (static_cast<long>(exponent + bias - 1) << fraction_bits) + units;
  return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(field));
}

std::vector<std::byte> reference_reduce(DType dtype, Operation operation,
                                        std::span<const std::vector<std::byte>> contributions,
                                        std::optional<std::size_t> weight, std::span<const Scale> scales) {
  BPS_ASSERT(!contributions.empty());
  const std::size_t ranks = weight.value_or(contributions.size());
  if (scales.empty() && contributions.size() == 1 && (ranks == 1 || operation != Operation::average))
    return contributions.front();
  switch (dtype) {
    case DType::f32: return reduce_native<float>(operation, contributions, ranks, scales);
    case DType::f64: return reduce_native<double>(operation, contributions, ranks, scales);
    case DType::f16: return reduce_16(10, operation, contributions, ranks, scales);
    case DType::bf16: return reduce_16(7, operation, contributions, ranks, scales);
    case DType::i8: return reduce_integers<std::int8_t>(operation, contributions, ranks);
    case DType::u8: return reduce_integers<std::uint8_t>(operation, contributions, ranks);
    case DType::i32: return reduce_integers<std::int32_t>(operation, contributions, ranks);
    case DType::i64: return reduce_integers<std::int64_t>(operation, contributions, ranks);
  }
  return {};
}

std::vector<std::byte> reference_reduce_by_host(DType dtype, Operation operation,
                                                std::span<const std::vector<std::vector<std::byte>>> hosts) {
  std::vector<std::vector<std::byte>> sums;
  std::size_t ranks = 0;
  for (const auto& host : hosts) {
    sums.push_back(
        reference_reduce(dtype, operation == Operation::average ? Operation::sum : operation, host));
    ranks += host.size();
  }
  return reference_reduce(dtype, operation, sums, ranks);
}

}  // namespace bps::sim

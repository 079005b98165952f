#include "tests/sim/reference.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

namespace bps::sim {
namespace {

template <class T>
std::vector<std::byte> raw(std::vector<T> values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <class T>
std::vector<std::byte> reduce(DType dtype, Operation operation, std::vector<std::vector<T>> inputs) {
  std::vector<std::vector<std::byte>> bytes;
  for (const auto& input : inputs)
    bytes.push_back(raw(input));
  return reference_reduce(dtype, operation, bytes);
}

}  // namespace

TEST_CASE("every 16-bit value widens and narrows to itself") {
  for (const int fraction_bits : {10, 7}) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float value = widen_16(static_cast<std::uint16_t>(bits), fraction_bits);
      if (!std::isnan(value) && narrow_16(value, fraction_bits) != bits) FAIL("bits " << bits);
    }
  }
  CHECK(widen_16(0x3c00, 10) == 1.0f);
  CHECK(widen_16(0x7bff, 10) == 65504.0f);
  CHECK(widen_16(0x0001, 10) == std::ldexp(1.0f, -24));
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    if (widen_16(static_cast<std::uint16_t>(bits), 7) != std::bit_cast<float>(bits << 16))
      FAIL("bits " << bits);
  }
}

TEST_CASE("narrowing rounds to nearest, ties to even, and overflows to infinity") {
  CHECK(narrow_16(2049.0f, 10) == narrow_16(2048.0f, 10));
  CHECK(narrow_16(2051.0f, 10) == narrow_16(2052.0f, 10));
  CHECK(narrow_16(65519.0f, 10) == 0x7bff);
  CHECK(narrow_16(65520.0f, 10) == 0x7c00);
  CHECK(narrow_16(-65520.0f, 10) == 0xfc00);
  CHECK(narrow_16(std::ldexp(1.0f, -25), 10) == 0);
  CHECK(narrow_16(std::ldexp(1.5f, -25), 10) == 1);
  CHECK(narrow_16(std::nanf(""), 10) == 0x7e00);
  CHECK(narrow_16(std::nanf(""), 7) == 0x7fc0);
  CHECK(narrow_16(-0.0f, 7) == 0x8000);
}

TEST_CASE("sums go in rank order and round once") {
  CHECK(reduce<float>(DType::f32, Operation::sum, {{1e8f}, {1.0f}, {-1e8f}}) == raw<float>({0.0f}));
  CHECK(reduce<float>(DType::f32, Operation::sum, {{1e8f}, {-1e8f}, {1.0f}}) == raw<float>({1.0f}));
  // 2048 + 1 + 1 in f16: two roundings would lose both ones.
  CHECK(reduce<std::uint16_t>(DType::f16, Operation::sum, {{0x6800}, {0x3c00}, {0x3c00}}) ==
        raw<std::uint16_t>({0x6801}));
}

TEST_CASE("integers wrap, averages truncate toward zero") {
  CHECK(reduce<std::int8_t>(DType::i8, Operation::sum, {{127, -128}, {1, -1}}) ==
        raw<std::int8_t>({-128, 127}));
  CHECK(reduce<std::int8_t>(DType::i8, Operation::average, {{127, -3}, {127, -4}}) ==
        raw<std::int8_t>({127, -3}));
  CHECK(reduce<std::uint8_t>(DType::u8, Operation::product, {{16}, {17}}) == raw<std::uint8_t>({16}));
  CHECK(reduce<std::uint8_t>(DType::u8, Operation::bit_and, {{0xf0}, {0x3c}}) == raw<std::uint8_t>({0x30}));
  CHECK(reduce<std::int8_t>(DType::i8, Operation::bit_or, {{-128}, {1}}) == raw<std::int8_t>({-127}));
  CHECK(reduce<std::int64_t>(DType::i64, Operation::bit_xor, {{-1}, {5}, {1}}) == raw<std::int64_t>({-5}));
  CHECK(reduce<std::int32_t>(DType::i32, Operation::average, {{INT32_MAX}, {INT32_MAX}}) ==
        raw<std::int32_t>({INT32_MAX}));
  CHECK(reduce<std::int64_t>(DType::i64, Operation::average, {{INT64_MAX}, {1}}) ==
        raw<std::int64_t>({INT64_MIN / 2}));
}

TEST_CASE("min and max: NaN wins, the earlier operand stays on a tie") {
  const float nan = std::bit_cast<float>(0x7f812345u);
  CHECK(reduce<float>(DType::f32, Operation::max, {{nan, 0.0f, 1.0f}, {1.0f, -0.0f, 2.0f}}) ==
        raw<float>({std::bit_cast<float>(0x7fc00000u), 0.0f, 2.0f}));
  CHECK(reduce<float>(DType::f32, Operation::min, {{-0.0f}, {0.0f}}) == raw<float>({-0.0f}));
}

TEST_CASE("a lone contribution passes bit for bit") {
  const std::vector<std::uint16_t> odd{0x7c01, 0xfe12, 0x0001};
  CHECK(reduce<std::uint16_t>(DType::f16, Operation::average, {odd}) == raw(odd));
}

}  // namespace bps::sim

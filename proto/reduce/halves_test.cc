// f16 and bf16 on every SIMD target of this machine: all values in, every rounding boundary out.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <vector>

#include "proto/reduce/oracle.h"
#include "proto/reduce/reduce.h"
#include "proto/reduce/reduce_harness.h"

namespace bps::reduce {
namespace {

using oracle::decode;
using oracle::element;
using oracle::encode;
using oracle::Format;
using oracle::is_nan_bits;
using oracle::kBF16;
using oracle::kF16;
using oracle::set_element;

TEST_CASE("every f16 and bf16 value survives the way through f32") {
  const DType dtype = GENERATE(DType::f16, DType::bf16);
  constexpr std::size_t kAll = 65536;
  on_every_target([&] {
    Array slot(kAll * 4, 1);
    for (std::size_t i = 0; i < kAll; ++i) {
      set_element(dtype, slot.data() + raw_offset(dtype, kAll), i, i);
    }
    widen_in_place(dtype, slot.data(), kAll);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kAll; ++i) {
      float value = 0;
      std::memcpy(&value, slot.data() + 4 * i, 4);
      const double expected = decode(dtype, i);
      wrong += std::isnan(expected) ? !std::isnan(value) : static_cast<double>(value) != expected;
      wrong += std::signbit(value) != ((i >> 15) != 0);
    }
    REQUIRE(wrong == 0);
    Array copy(kAll * 2, 3);
    snapshot(dtype, slot.data(), copy.data(), kAll);
    finish(dtype, Operation::sum, slot.data(), slot.data(), {}, kAll, 1);
    for (std::size_t i = 0; i < kAll; ++i) {
      wrong += element(dtype, slot.data(), i) != i;
      wrong += element(dtype, copy.data(), i) != i;
    }
    REQUIRE(wrong == 0);
  });
}

TEST_CASE("every f16 and bf16 value is an operand") {
  const DType dtype = GENERATE(DType::f16, DType::bf16);
  const Format format = dtype == DType::f16 ? kF16 : kBF16;
  constexpr std::size_t kAll = 65536;
  Array values(kAll * 2, 0), negative_zeros(kAll * 2, 0);
  for (std::size_t i = 0; i < kAll; ++i) {
    set_element(dtype, values.data(), i, i);
    set_element(dtype, negative_zeros.data(), i, 0x8000);
  }
  on_every_target([&] {
    // Adding -0 changes nothing but NaNs, which become the canonical one.
    for (const bool first : {true, false}) {
      Array sums(kAll * 2, 0);
      const std::byte* const sum = sums.data();
      const std::byte* const other[] = {first ? negative_zeros.data() : values.data()};
      finish(dtype, Operation::sum, sums.data(), nullptr, other, kAll, 2,
             first ? values.data() : negative_zeros.data());
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < kAll; ++i) {
        const std::uint64_t nan = dtype == DType::f16 ? 0x7E00 : 0x7FC0;
        wrong += element(dtype, sum, i) != (is_nan_bits(i, format) ? nan : i);
      }
      REQUIRE(wrong == 0);
    }
  });
}

TEST_CASE("f32 rounds to f16 and bf16 to nearest, ties to even") {
  const DType dtype = GENERATE(DType::f16, DType::bf16);
  const Format format = dtype == DType::f16 ? kF16 : kBF16;
  // Every value of the format, the midpoint to the next one, and the f32 on either side of both.
  std::vector<float> inputs;
  for (std::uint64_t bits = 0; bits < 0x8000 && !is_nan_bits(bits, format); ++bits) {
    const auto value = static_cast<float>(decode(bits, format));
    const double next = is_nan_bits(bits + 1, format) ? decode(bits, format) : decode(bits + 1, format);
    const auto middle = static_cast<float>((decode(bits, format) + next) / 2);
    for (const float center : {value, middle}) {
      for (const float x : {center, std::nextafter(center, 0.0f), std::nextafter(center, 1e38f)}) {
        inputs.push_back(x);
        inputs.push_back(-x);
      }
    }
  }
  for (const float x :
       {65504.0f, 65519.99f, 65520.0f, 65536.0f, 3.4028235e38f, 3.3961775e38f, 1e-45f, 1e-40f}) {
    inputs.push_back(x);
    inputs.push_back(-x);
  }
  std::vector<std::uint64_t> expected;
  for (const float x : inputs) {
    expected.push_back(encode(static_cast<double>(x), format));
  }
  const auto* const wide = reinterpret_cast<const std::byte*>(inputs.data());
  const std::size_t count = inputs.size();
  Array negative_zeros(2 * count, 0);
  for (std::size_t i = 0; i < count; ++i) {
    set_element(dtype, negative_zeros.data(), i, 0x8000);
  }
  on_every_target([&] {
    std::vector<std::byte> out(2 * count);
    snapshot(dtype, wide, out.data(), count);
    // Adding -0 changes nothing, but goes through the way out that sums take.
    Array slot(4 * count, 0);
    std::memcpy(slot.data(), wide, 4 * count);
    const std::byte* const zeros[] = {negative_zeros.data()};
    finish(dtype, Operation::sum, slot.data(), slot.data(), zeros, count, 1);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
      wrong += element(dtype, out.data(), i) != expected[i];
      wrong += element(dtype, slot.data(), i) != expected[i];
    }
    REQUIRE(wrong == 0);
  });
}

TEST_CASE("NaNs that fit no payload stay NaNs") {
  const std::uint32_t bits[] = {0x7F800001, 0xFF800001, 0x7F801FFF, 0x7FFFFFFF};
  on_every_target([&] {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      std::byte out[8];
      snapshot(dtype, reinterpret_cast<const std::byte*>(bits), out, 4);
      for (std::size_t i = 0; i < 4; ++i) {
        REQUIRE(is_nan_bits(element(dtype, out, i), dtype == DType::f16 ? kF16 : kBF16));
        REQUIRE((element(dtype, out, i) >> 15) == bits[i] >> 31);
      }
    }
  });
}

}  // namespace
}  // namespace bps::reduce

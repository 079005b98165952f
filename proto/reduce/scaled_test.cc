// Scaled sums on every SIMD target of this machine: bits of the plain arithmetic, one element at a time.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "proto/reduce/oracle.h"
#include "proto/reduce/reduce.h"
#include "proto/reduce/reduce_harness.h"

namespace bps::reduce {
namespace {

using oracle::decode;
using oracle::element;
using oracle::encode;

constexpr DType kFloats[] = {DType::f32, DType::f64, DType::f16, DType::bf16};
constexpr double kFactors[] = {1, 0, -1, 0.1, 3, 1e-30, 1e30, 1.0 / 3};

double rounded(DType dtype, double value) {
  return dtype == DType::f64 ? value : static_cast<double>(static_cast<float>(value));
}

// What a round gives of one element.
std::uint64_t scaled(DType dtype, const std::vector<std::uint64_t>& in, const std::vector<double>& factors,
                     double divisor, double multiplier) {
  const auto product = [&](std::size_t k) {
    return rounded(dtype, decode(dtype, in[k]) * rounded(dtype, factors[k]));
  };
  double sum = product(0);
  for (std::size_t k = 1; k < in.size(); ++k)
    sum = rounded(dtype, sum + product(k));
  sum = rounded(dtype, sum / rounded(dtype, divisor));
  return encode(dtype, rounded(dtype, sum * rounded(dtype, multiplier)));
}

}  // namespace

TEST_CASE("a scaled sum rounds every factor, product, sum and quotient once, whatever is there before") {
  std::mt19937_64 random(7);
  const DType dtype = GENERATE(from_range(std::begin(kFloats), std::end(kFloats)));
  for (const std::size_t count : {1, 3, 16, 37, 130}) {
    for (const std::size_t ranks : {1, 2, 5, 19}) {
      std::vector<Array> inputs;
      std::vector<const std::byte*> pointers;
      std::vector<double> factors;
      for (std::size_t k = 0; k < ranks; ++k) {
        inputs.emplace_back(count * size_of(dtype), (count + k) % 9);
        for (std::size_t i = 0; i < count; ++i) {
          const auto bits = random();
          const double value = std::ldexp(static_cast<double>(static_cast<std::int64_t>(bits)), -62);
          // Ordinary values, and any bits: NaNs, infinities and denormals among them.
          const std::uint64_t mask = size_of(dtype) == 8 ? ~0ull : (1ull << (8 * size_of(dtype))) - 1;
          oracle::set_element(dtype, inputs[k].data(), i, i % 3 == 0 ? bits & mask : encode(dtype, value));
        }
        pointers.push_back(inputs[k].data());
        factors.push_back(kFactors[random() % std::size(kFactors)]);
      }
      const double divisor = kFactors[3 + random() % 2],
                   multiplier = kFactors[random() % std::size(kFactors)];
      // So many come first; the others when these are accumulators.
      const std::size_t split = random() % ranks;
      CAPTURE(name_of(dtype), count, ranks, split, divisor, multiplier);
      on_every_target([&] {
        std::vector<std::byte> accumulators(count * accumulator_size(dtype) + 64, std::byte{0xA5});
        std::vector<std::byte> out(count * size_of(dtype) + 64, std::byte{0xA5});
        const std::span<const std::byte* const> all(pointers);
        Scaling scaling;
        scaling.first = factors[0];
        scaling.inputs = std::span(factors).subspan(1, split);
        const std::byte* first = pointers[0];
        if (split > 0) {
          accumulate_scaled(dtype, accumulators.data(), all.subspan(1, split), count, scaling, first);
          first = nullptr;
        }
        scaling.inputs = std::span(factors).subspan(1 + split);
        scaling.divisor = divisor;
        scaling.multiplier = multiplier;
        finish_scaled(dtype, out.data(), accumulators.data(), all.subspan(1 + split), count, scaling, first);
        for (std::size_t i = 0; i < count; ++i) {
          std::vector<std::uint64_t> column;
          for (const std::byte* const input : pointers)
            column.push_back(element(dtype, input, i));
          const std::uint64_t expected = scaled(dtype, column, factors, divisor, multiplier);
          if (element(dtype, out.data(), i) != expected)
            FAIL("element " << i << " is " << element(dtype, out.data(), i) << ", not " << expected);
        }
        const auto is_untouched = [](std::byte b) { return b == std::byte{0xA5}; };
        CHECK(std::all_of(out.end() - 64, out.end(), is_untouched));
        CHECK(std::all_of(accumulators.end() - 64, accumulators.end(), is_untouched));
      });
    }
  }
}

TEST_CASE("a scaled sum may take the place of the first contribution") {
  const DType dtype = GENERATE(from_range(std::begin(kFloats), std::end(kFloats)));
  on_every_target([&] {
    constexpr std::size_t kCount = 67;
    std::vector<std::byte> slot(kCount * size_of(dtype)), other(slot);
    for (std::size_t i = 0; i < kCount; ++i) {
      oracle::set_element(dtype, slot.data(), i, encode(dtype, static_cast<double>(i)));
      oracle::set_element(dtype, other.data(), i, encode(dtype, 2.0));
    }
    const std::array<const std::byte*, 1> inputs{other.data()};
    const std::array<double, 1> factors{4};
    finish_scaled(dtype, slot.data(), nullptr, inputs, kCount, {0.5, factors, 1, 2}, slot.data());
    for (std::size_t i = 0; i < kCount; ++i)
      CHECK(decode(dtype, element(dtype, slot.data(), i)) == static_cast<double>(i) + 16);
  });
}

}  // namespace bps::reduce

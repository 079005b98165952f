// Averages on every SIMD target of this machine, with any sum and any weight.
#include <bit>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "proto/reduce/oracle.h"
#include "proto/reduce/reduce.h"
#include "proto/reduce/reduce_harness.h"

namespace bps::reduce {
namespace {

using oracle::element;

// 41, 47, 49, 55, ...: their reciprocals, rounded to nearest, are too small for f32 or f64.
constexpr std::uint32_t kWeights[] = {1,
                                      2,
                                      3,
                                      5,
                                      7,
                                      8,
                                      10,
                                      41,
                                      47,
                                      49,
                                      55,
                                      61,
                                      64,
                                      83,
                                      98,
                                      100,
                                      103,
                                      107,
                                      255,
                                      256,
                                      257,
                                      641,
                                      1000,
                                      65535,
                                      65536,
                                      65537,
                                      262143,
                                      262144,
                                      262145,
                                      1000003,
                                      16777215,
                                      16777217,
                                      (1u << 31) - 1,
                                      1u << 31,
                                      (1u << 31) + 1,
                                      4294967291u,
                                      4294967295u};

// Random sums of all sizes, the ends of the range, and the neighbours of multiples of the weight, where a
// quotient that is a little off becomes a wrong one.
template <class Sum>
std::vector<Sum> sums_for(std::uint32_t weight) {
  std::mt19937_64 engine(weight);
  std::vector<Sum> sums = {0,
                           1,
                           -1,
                           std::numeric_limits<Sum>::max(),
                           std::numeric_limits<Sum>::min(),
                           std::numeric_limits<Sum>::min() + 1};
  for (std::size_t i = 0; i < 4000; ++i) {
    const auto random = static_cast<Sum>(static_cast<Sum>(engine()) >> (engine() % (8 * sizeof(Sum))));
    const auto multiple =
        static_cast<Sum>(random / static_cast<std::int64_t>(weight) * static_cast<std::int64_t>(weight));
    sums.push_back(random);
    for (const int step : {-1, 0, 1}) {
      if (multiple > std::numeric_limits<Sum>::min() && multiple < std::numeric_limits<Sum>::max())
        sums.push_back(static_cast<Sum>(multiple + step));
    }
  }
  return sums;
}

template <class Sum>
void check_integers(DType dtype) {
  for (const std::uint32_t weight : kWeights) {
    const std::vector<Sum> sums = sums_for<Sum>(weight);
    CAPTURE(name_of(dtype), weight);
    on_every_target([&] {
      std::vector<Sum> slot = sums;
      auto* const memory = reinterpret_cast<std::byte*>(slot.data());
      finish(dtype, Operation::average, memory, memory, {}, sums.size(), weight);
      const std::uint64_t mask = ~std::uint64_t{0} >> (64 - 8 * size_of(dtype));
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const std::int64_t quotient = sums[i] / static_cast<std::int64_t>(weight);
        if (element(dtype, memory, i) == (static_cast<std::uint64_t>(quotient) & mask)) continue;
        CAPTURE(i, sums[i], quotient);
        REQUIRE(element(dtype, memory, i) == (static_cast<std::uint64_t>(quotient) & mask));
      }
    });
  }
}

TEST_CASE("an average of integers is the exact quotient, truncated, for any sum and weight") {
  check_integers<std::int32_t>(DType::i8);
  check_integers<std::int32_t>(DType::u8);
  check_integers<std::int64_t>(DType::i32);
  check_integers<std::int64_t>(DType::i64);
}

template <class Float, class Bits>
void check_floats(DType dtype) {
  std::mt19937_64 engine(7);
  std::vector<Float> sums;
  for (std::size_t i = 0; i < 5000; ++i) {
    sums.push_back(std::bit_cast<Float>(static_cast<Bits>(engine())));
    // Small ones, whose quotients are denormal.
    sums.push_back(std::bit_cast<Float>(static_cast<Bits>(static_cast<Bits>(engine()) >> 4)) *
                   std::numeric_limits<Float>::min());
  }
  for (const std::uint32_t weight : kWeights) {
    if (weight == 1) continue;
    CAPTURE(name_of(dtype), weight);
    on_every_target([&] {
      std::vector<Float> slot = sums;
      auto* const memory = reinterpret_cast<std::byte*>(slot.data());
      finish(dtype, Operation::average, memory, memory, {}, sums.size(), weight);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const Float quotient = sums[i] / static_cast<Float>(weight);
        const Bits nan = static_cast<Bits>(oracle::encode(dtype, std::numeric_limits<double>::quiet_NaN()));
        const Bits expected = quotient == quotient ? std::bit_cast<Bits>(quotient) : nan;
        wrong += std::bit_cast<Bits>(slot[i]) != expected;
      }
      REQUIRE(wrong == 0);
    });
  }
}

TEST_CASE("an average of floats is one division, rounded once, by powers of two as well") {
  check_floats<float, std::uint32_t>(DType::f32);
  check_floats<double, std::uint64_t>(DType::f64);
}

}  // namespace
}  // namespace bps::reduce

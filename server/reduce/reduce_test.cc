// Every kernel on every SIMD target of this machine against the oracle, bit for bit.
#include "server/reduce/reduce.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#define HWY_COMPILE_ALL_ATTAINABLE
#include "hwy/targets.h"
#include "server/reduce/oracle.h"

namespace bps::reduce {
namespace {

using oracle::decode;
using oracle::element;
using oracle::encode;
using oracle::Format;
using oracle::is_float;
using oracle::is_nan_bits;
using oracle::kBF16;
using oracle::kF16;
using oracle::set_element;

// ---- Test data

std::vector<std::uint64_t> special_values(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return {0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF,
              0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F800001, 0x3F800000, 0xBF800000, 0x34000000};
    case DType::f64:
      return {0,
              0x8000000000000000,
              1,
              0x000FFFFFFFFFFFFF,
              0x0010000000000000,
              0x7FEFFFFFFFFFFFFF,
              0x7FF0000000000000,
              0xFFF0000000000000,
              0x7FF8000000000000,
              0xFFF8000000000123,
              0x7FF0000000000001,
              0x3FF0000000000000,
              0xBFF0000000000000};
    case DType::f16:
      return {0,      0x8000, 1,      0x8001, 0x3FF,  0x400,  0x7BFF,
              0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01, 0x3C00};
    case DType::bf16:
      return {0,      0x8000, 1,      0x8001, 0x7F,   0x80,   0x7F7F,
              0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F81, 0x3F80};
    case DType::i8:
    case DType::u8: return {0, 1, 0x7F, 0x80, 0xFF};
    case DType::i32: return {0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};
    case DType::i64: return {0, 1, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, ~0ull, 0x100000000};
  }
  return {};
}

class Values {
 public:
  explicit Values(DType dtype) : dtype_(dtype), special_(special_values(dtype)) {}

  std::uint64_t operator()() {
    const std::uint64_t random = engine_();
    if (random % 8 == 0) return special_[(random >> 8) % special_.size()];
    const std::size_t bits = 8 * size_of(dtype_);
    if (random % 8 == 1 || !is_float(dtype_))
      return bits == 64 ? engine_() : engine_() & ((1ull << bits) - 1);
    return encode(dtype_, std::ldexp(std::uniform_real_distribution<double>(-1, 1)(engine_),
                                     static_cast<int>((random >> 8) % 24) - 12));
  }

 private:
  DType dtype_;
  std::vector<std::uint64_t> special_;
  std::mt19937_64 engine_{20240229};
};

// An array of raw elements that begins `misalignment` bytes after an aligned address.
struct Array {
  Array(std::size_t bytes, std::size_t misalignment)
      : storage(bytes + misalignment + 64), offset(misalignment) {}
  std::byte* data() { return storage.data() + offset; }
  std::vector<std::byte> storage;
  std::size_t offset;
};

// Runs `body` once per SIMD target of this machine.
template <class Body>
void on_every_target(Body body) {
  hwy::SetSupportedTargetsForTest(0);
  const auto targets = hwy::SupportedAndGeneratedTargets();
  REQUIRE(!targets.empty());
  for (const auto target : targets) {
    hwy::SetSupportedTargetsForTest(target);
    INFO("target " << hwy::TargetName(target));
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                             DType::i8,  DType::u8,  DType::i32, DType::i64};
constexpr Operation kOperations[] = {Operation::sum, Operation::average, Operation::min, Operation::max,
                                     Operation::product};

// One round: contributions[k][i], added in `pieces` calls of accumulate.
std::vector<std::uint64_t> run_round(DType dtype, Operation operation,
                                     const std::vector<std::vector<std::uint64_t>>& contributions,
                                     std::uint32_t weight, std::size_t misalignment, bool fused,
                                     std::size_t pieces) {
  const std::size_t count = contributions[0].size();
  Array slot(count * accumulator_size(dtype), misalignment);
  std::vector<Array> inputs;
  for (std::size_t k = 0; k < contributions.size(); ++k) {
    inputs.emplace_back(count * size_of(dtype), (misalignment + k) % 9);
    for (std::size_t i = 0; i < count; ++i) {
      set_element(dtype, inputs[k].data(), i, contributions[k][i]);
    }
  }
  std::memcpy(slot.data() + raw_offset(dtype, count), inputs[0].data(), count * size_of(dtype));
  widen_in_place(dtype, slot.data(), count);
  std::vector<const std::byte*> rest;
  for (std::size_t k = 1; k < inputs.size(); ++k) {
    rest.push_back(inputs[k].data());
  }
  std::span<const std::byte* const> left(rest);
  for (std::size_t piece = 1; piece < pieces; ++piece) {
    const std::size_t n = left.size() / 2;
    accumulate(dtype, operation, slot.data(), left.first(n), count);
    left = left.subspan(n);
  }
  if (fused) {
    accumulate_and_finish(dtype, operation, slot.data(), left, count, weight);
  } else {
    accumulate(dtype, operation, slot.data(), left, count);
    finish(dtype, operation, slot.data(), count, weight);
  }
  std::vector<std::uint64_t> result;
  for (std::size_t i = 0; i < count; ++i) {
    result.push_back(element(dtype, slot.data(), i));
  }
  return result;
}

TEST_CASE("every kernel agrees with the oracle bit for bit on every target") {
  const DType dtype = GENERATE(from_range(std::begin(kDTypes), std::end(kDTypes)));
  const Operation operation = GENERATE(from_range(std::begin(kOperations), std::end(kOperations)));
  CAPTURE(name_of(dtype), name_of(operation));
  Values values(dtype);
  const std::size_t counts[] = {0,  1,  2,  3,   7,   8,   15,   17,   31,   33,
                                63, 64, 65, 127, 130, 255, 1000, 2047, 2049, 4099};
  std::size_t variant = 0;
  for (const std::size_t count : counts) {
    for (const std::size_t ranks : {1, 2, 3, 4, 5, 9, 18}) {
      if (count > 300 && ranks > 5) continue;
      std::vector<std::vector<std::uint64_t>> contributions(ranks, std::vector<std::uint64_t>(count));
      for (auto& contribution : contributions) {
        for (auto& bits : contribution) {
          bits = values();
        }
      }
      const auto weight = static_cast<std::uint32_t>(ranks + (variant % 3 == 0 ? variant % 7 : 0));
      std::vector<std::uint64_t> expected(count);
      for (std::size_t i = 0; i < count; ++i) {
        std::vector<std::uint64_t> column;
        for (const auto& contribution : contributions) {
          column.push_back(contribution[i]);
        }
        expected[i] = oracle::reduced(dtype, operation, column, weight);
      }
      ++variant;
      CAPTURE(count, ranks, weight);
      on_every_target([&] {
        const auto got = run_round(dtype, operation, contributions, weight, variant % 9, variant % 2 == 0,
                                   1 + variant % 3);
        if (got != expected) {
          for (std::size_t i = 0; i < count; ++i) {
            INFO("element " << i);
            REQUIRE(got[i] == expected[i]);
          }
        }
      });
    }
  }
}

TEST_CASE("nothing outside the slot and the inputs is written") {
  const DType dtype = GENERATE(from_range(std::begin(kDTypes), std::end(kDTypes)));
  for (const std::size_t count : {1, 5, 33, 67}) {
    on_every_target([&] {
      const std::size_t bytes = count * accumulator_size(dtype);
      std::vector<std::byte> memory(bytes + 128, std::byte{0xA5});
      std::vector<std::byte> input(count * size_of(dtype), std::byte{1});
      std::byte* const slot = memory.data() + 61;
      std::memset(slot, 1, bytes);
      const std::byte* const inputs[] = {input.data(), input.data()};
      widen_in_place(dtype, slot, count);
      accumulate(dtype, Operation::sum, slot, inputs, count);
      accumulate_and_finish(dtype, Operation::average, slot, inputs, count, 3);
      for (std::size_t i = 0; i < memory.size(); ++i) {
        if (i >= 61 && i < 61 + bytes) continue;
        REQUIRE(memory[i] == std::byte{0xA5});
      }
    });
  }
}

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
    finish(dtype, Operation::sum, slot.data(), kAll, 1);
    for (std::size_t i = 0; i < kAll; ++i) {
      wrong += element(dtype, slot.data(), i) != i;
      wrong += element(dtype, copy.data(), i) != i;
    }
    REQUIRE(wrong == 0);
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
  on_every_target([&] {
    std::vector<std::byte> out(inputs.size() * 2);
    snapshot(dtype, reinterpret_cast<const std::byte*>(inputs.data()), out.data(), inputs.size());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      wrong += element(dtype, out.data(), i) != expected[i];
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

TEST_CASE("infinity that meets its opposite is the canonical NaN on every target") {
  const std::vector<std::vector<std::uint64_t>> contributions = {{0x7F800000, 0xFF800000},
                                                                 {0xFF800000, 0x7F800000}};
  on_every_target([&] {
    const auto got = run_round(DType::f32, Operation::sum, contributions, 2, 0, true, 1);
    REQUIRE(got == std::vector<std::uint64_t>{0x7FC00000, 0x7FC00000});
  });
}

TEST_CASE("the earlier of two zeros stays") {
  const std::vector<std::vector<std::uint64_t>> contributions = {{0x80000000, 0}, {0, 0x80000000}};
  on_every_target([&] {
    for (const Operation operation : {Operation::min, Operation::max}) {
      REQUIRE(run_round(DType::f32, operation, contributions, 2, 0, false, 1) == contributions[0]);
    }
  });
}

TEST_CASE("the scalar target is among those tested") {
  hwy::SetSupportedTargetsForTest(0);
  const std::int64_t scalar = HWY_BASELINE_SCALAR;
  bool found = false;
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    found = found || target == scalar;
  }
  CHECK(found);
}

}  // namespace
}  // namespace bps::reduce

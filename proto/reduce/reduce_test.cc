// Every kernel on every SIMD target of this machine against the oracle, bit for bit.
#include "proto/reduce/reduce.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "proto/reduce/oracle.h"
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

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                             DType::i8,  DType::u8,  DType::i32, DType::i64};

// How the first contribution comes into the sum.
enum class First { widened, tail, outside, in_place };

// One round: contributions[k][i], added in `pieces` calls, the last of which finishes; not `fused`: one more
// call finishes. The result lies apart, or in place of the first contribution or of the accumulators.
std::vector<std::uint64_t> run_round(DType dtype, Operation operation,
                                     const std::vector<std::vector<std::uint64_t>>& contributions,
                                     std::uint32_t weight, std::size_t misalignment, bool fused,
                                     std::size_t pieces, First how = First::tail) {
  const std::size_t count = contributions[0].size();
  Array slot(count * accumulator_size(dtype), misalignment);
  Array result_apart(count * size_of(dtype), (misalignment + 5) % 9);
  std::vector<Array> inputs;
  for (std::size_t k = 0; k < contributions.size(); ++k) {
    inputs.emplace_back(count * size_of(dtype), (misalignment + k) % 9);
    for (std::size_t i = 0; i < count; ++i) {
      set_element(dtype, inputs[k].data(), i, contributions[k][i]);
    }
  }
  const std::byte* first = inputs[0].data();
  if (how == First::widened || how == First::tail) {
    std::byte* const tail = slot.data() + raw_offset(dtype, count);
    std::memcpy(tail, first, count * size_of(dtype));
    first = tail;
  }
  if (how == First::widened) {
    widen_in_place(dtype, slot.data(), count);
    first = nullptr;
  }
  std::vector<const std::byte*> rest;
  for (std::size_t k = 1; k < inputs.size(); ++k) {
    rest.push_back(inputs[k].data());
  }
  std::span<const std::byte* const> left(rest);
  for (std::size_t piece = 1; piece < pieces; ++piece) {
    const std::size_t n = left.size() / 2;
    accumulate(dtype, operation, slot.data(), left.first(n), count, std::exchange(first, nullptr));
    left = left.subspan(n);
  }
  if (!fused) {
    accumulate(dtype, operation, slot.data(), std::exchange(left, {}), count, std::exchange(first, nullptr));
  }
  std::byte* aggregate = result_apart.data();
  if (how == First::in_place) aggregate = first != nullptr ? inputs[0].data() : slot.data();
  finish(dtype, operation, aggregate, first != nullptr ? nullptr : slot.data(), left, count, weight, first);
  std::vector<std::uint64_t> result;
  for (std::size_t i = 0; i < count; ++i) {
    result.push_back(element(dtype, aggregate, i));
  }
  return result;
}

TEST_CASE("every kernel agrees with the oracle bit for bit on every target") {
  const DType dtype = GENERATE(from_range(std::begin(kDTypes), std::end(kDTypes)));
  const Operation operation = GENERATE(from_range(std::begin(kOperations), std::end(kOperations)));
  CAPTURE(name_of(dtype), name_of(operation));
  if (!is_defined(operation, dtype)) return;
  Values values(dtype);
  const std::size_t counts[] = {0,  1,  2,  3,   7,   8,   15,   17,   31,   33,
                                63, 64, 65, 127, 130, 255, 1000, 2047, 2049, 4099};
  std::size_t variant = 0;
  for (const std::size_t count : counts) {
    for (const std::size_t ranks : {1, 2, 3, 4, 5, 9, 10, 18}) {
      if (count > 300 && ranks > 5 && (count != 4099 || ranks == 9)) continue;
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
                                   1 + variant % 3, static_cast<First>(variant / 2 % 4));
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

TEST_CASE("what is there at once is combined in one call, and nothing beside the result is written") {
  const DType dtype = GENERATE(from_range(std::begin(kDTypes), std::end(kDTypes)));
  const Operation operation = GENERATE(from_range(std::begin(kOperations), std::end(kOperations)));
  CAPTURE(name_of(dtype), name_of(operation));
  if (!is_defined(operation, dtype)) return;
  Values values(dtype);
  for (const std::size_t count : {0, 1, 7, 33, 130, 2049, 4099}) {
    for (const std::size_t ranks : {1, 2, 3, 8, 9, 10, 17, 64}) {
      if (count > 300 && ranks % 9 > 1) continue;
      std::vector<Array> inputs;
      std::vector<const std::byte*> pointers;
      for (std::size_t k = 0; k < ranks; ++k) {
        inputs.emplace_back(count * size_of(dtype), (count + k) % 9);
        for (std::size_t i = 0; i < count; ++i)
          set_element(dtype, inputs[k].data(), i, values());
        pointers.push_back(inputs[k].data());
      }
      CAPTURE(count, ranks);
      on_every_target([&] {
        const std::size_t begin = 61 + ranks % 5, end = begin + count * size_of(dtype);
        std::vector<std::byte> memory(end + 128, std::byte{0xA5});
        combine(dtype, operation, memory.data() + begin, pointers, count);
        for (std::size_t i = 0; i < count; ++i) {
          std::vector<std::uint64_t> column;
          for (const std::byte* const input : pointers)
            column.push_back(element(dtype, input, i));
          const Operation meant = operation == Operation::average ? Operation::sum : operation;
          if (element(dtype, memory.data() + begin, i) == oracle::reduced(dtype, meant, column, 1)) continue;
          FAIL("element " << i << " is " << element(dtype, memory.data() + begin, i));
        }
        for (std::size_t i = 0; i < memory.size(); ++i)
          if ((i < begin || i >= end) && memory[i] != std::byte{0xA5}) FAIL("byte " << i << " was written");
      });
    }
  }
}

TEST_CASE("nothing outside the accumulators and the result is written") {
  const DType dtype = GENERATE(from_range(std::begin(kDTypes), std::end(kDTypes)));
  for (const std::size_t count : {1, 5, 33, 67}) {
    on_every_target([&] {
      const std::size_t bytes = count * accumulator_size(dtype);
      std::vector<std::byte> memory(bytes + 128, std::byte{0xA5});
      const std::size_t raw = count * size_of(dtype);
      std::vector<std::byte> input(raw, std::byte{1});
      std::vector<std::byte> result(raw + 128, std::byte{0xA5});
      std::byte* const out = result.data() + 61;
      std::byte* const slot = memory.data() + 61;
      std::memset(slot, 1, bytes);
      const std::byte* const inputs[] = {input.data(), input.data()};
      widen_in_place(dtype, slot, count);
      accumulate(dtype, Operation::sum, slot, inputs, count);
      const std::vector<std::byte> kept = memory;
      finish(dtype, Operation::average, out, slot, inputs, count, 3);
      finish(dtype, Operation::average, out, nullptr, inputs, count, 3, out);
      finish(dtype, Operation::sum, out, nullptr, {}, count, 1, inputs[0]);
      finish(dtype, Operation::sum, out, slot, {}, count, 1);
      REQUIRE(memory == kept);
      for (std::size_t i = 0; i < result.size(); ++i) {
        if (i >= 61 && i < 61 + raw) continue;
        REQUIRE(result[i] == std::byte{0xA5});
      }
      for (std::size_t i = 0; i < memory.size(); ++i) {
        if (i >= 61 && i < 61 + bytes) continue;
        REQUIRE(memory[i] == std::byte{0xA5});
      }
    });
  }
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

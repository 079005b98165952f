// Every kernel on every SIMD target of this machine against the oracle below, bit for bit.
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

namespace bps::reduce {
namespace {

// ---- The oracle: one element at a time, its bits in a u64; f16 and bf16 through double, from the
// definition of the formats. Sums, products and quotients of two f32 rounded from double are the correctly
// rounded ones: double has more than twice the digits.

struct Format {
  int mantissa_bits;
  int min_exponent;  // of normal numbers
  int max_exponent;
  int bits;
};
constexpr Format kF16{10, -14, 15, 16};
constexpr Format kBF16{7, -126, 127, 16};

bool is_nan_bits(std::uint64_t bits, const Format& f) {
  const std::uint64_t magnitude = bits & ((1ull << (f.bits - 1)) - 1);
  const std::uint64_t infinity = ((1ull << (f.bits - 1 - f.mantissa_bits)) - 1) << f.mantissa_bits;
  return magnitude > infinity;
}

double decode(std::uint64_t bits, const Format& f) {
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

std::uint64_t encode(double value, const Format& f) {
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

double decode(DType dtype, std::uint64_t bits) {
  switch (dtype) {
    case DType::f32: return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    case DType::f64: return std::bit_cast<double>(bits);
    case DType::f16: return decode(bits, kF16);
    default: return decode(bits, kBF16);
  }
}

std::uint64_t encode(DType dtype, double value) {
  switch (dtype) {
    case DType::f32:
      return std::isnan(value) ? 0x7FC00000u : std::bit_cast<std::uint32_t>(static_cast<float>(value));
    case DType::f64: return std::isnan(value) ? 0x7FF8000000000000u : std::bit_cast<std::uint64_t>(value);
    case DType::f16: return encode(value, kF16);
    default: return encode(value, kBF16);
  }
}

bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::f16 || dtype == DType::bf16;
}

double combine(Operation operation, double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  switch (operation) {
    case Operation::min: return b < a ? b : a;
    case Operation::max: return a < b ? b : a;
    case Operation::product: return a * b;
    default: return a + b;
  }
}

std::uint64_t float_oracle(DType dtype, Operation operation, const std::vector<std::uint64_t>& in,
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

std::uint64_t integer_oracle(DType dtype, Operation operation, const std::vector<std::uint64_t>& in,
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
  std::uint64_t product = in[0];
  std::int64_t least = element(in[0]), most = element(in[0]);
  for (std::size_t k = 1; k < in.size(); ++k) {
    sum += element(in[k]);
    product *= static_cast<std::uint64_t>(element(in[k]));
    least = std::min(least, element(in[k]));
    most = std::max(most, element(in[k]));
  }
  std::uint64_t result = 0;
  switch (operation) {
    case Operation::min: result = static_cast<std::uint64_t>(least); break;
    case Operation::max: result = static_cast<std::uint64_t>(most); break;
    case Operation::product: result = product; break;
    case Operation::average:
      if (dtype == DType::i64) sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum));
      result = static_cast<std::uint64_t>(sum / std::max(weight, 1u));
      break;
    default: result = static_cast<std::uint64_t>(sum); break;
  }
  const std::size_t bits = 8 * size_of(dtype);
  return bits == 64 ? result : result & ((1ull << bits) - 1);
}

std::uint64_t oracle(DType dtype, Operation operation, const std::vector<std::uint64_t>& in,
                     std::uint32_t weight) {
  return is_float(dtype) ? float_oracle(dtype, operation, in, weight)
                         : integer_oracle(dtype, operation, in, weight);
}

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

std::uint64_t element(DType dtype, const std::byte* data, std::size_t index) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, data + index * size_of(dtype), size_of(dtype));
  return bits;
}

void set_element(DType dtype, std::byte* data, std::size_t index, std::uint64_t bits) {
  std::memcpy(data + index * size_of(dtype), &bits, size_of(dtype));
}

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
        expected[i] = oracle(dtype, operation, column, weight);
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

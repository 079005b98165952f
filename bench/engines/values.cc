#include "bench/engines/values.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace bps::bench {
namespace {

constexpr std::uint32_t kMaxKinds = 16;

// Whole numbers up to this are exact. In types larger than f32 more is of no use.
std::uint32_t max_sum(DType dtype) {
  switch (dtype) {
    case DType::i8: return 127;
    case DType::u8: return 255;
    case DType::bf16: return 256;
    case DType::f16: return 2048;
    default: return 1u << 24;
  }
}

// How many ranks push different values. What ranks add is on average (extras - 1) / 2 at most, and at least
// two kinds have to fit beside it.
std::uint32_t extras_of(const Pattern& pattern) {
  const std::uint32_t workers = pattern.workers;
  return std::clamp<std::uint32_t>(2 * (max_sum(pattern.dtype) - workers) / workers + 1, 1, workers);
}

// What a rank adds to the kind of an element.
std::uint32_t extra_of(const Pattern& pattern, std::uint32_t rank) { return rank % extras_of(pattern); }

// The largest sum is workers * (kinds - 1) and what the ranks add.
std::uint32_t kinds_of(const Pattern& pattern) {
  const std::uint64_t workers = pattern.workers;
  const std::uint64_t added = workers * (extras_of(pattern) - 1) / 2;
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>((max_sum(pattern.dtype) - added) / workers + 1, 2, kMaxKinds));
}

std::uint32_t kind_of(std::uint64_t element, std::uint64_t round, std::uint32_t kinds) {
  std::uint32_t h = static_cast<std::uint32_t>(element) + static_cast<std::uint32_t>(round) * 0x9e3779b9u;
  h ^= h >> 16;
  h *= 0x7feb352du;
  h ^= h >> 15;
  h *= 0x846ca68bu;
  return static_cast<std::uint32_t>((static_cast<std::uint64_t>(h) * kinds) >> 32);
}

// A 16-bit float with `exponent_bits` holds small whole numbers exactly.
std::uint16_t small_float(std::uint32_t value, int exponent_bits) {
  if (value == 0) return 0;
  const int mantissa_bits = 15 - exponent_bits;
  const int exponent = std::bit_width(value) - 1;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const std::uint32_t fraction = (value << mantissa_bits >> exponent) & ((1u << mantissa_bits) - 1);
  return static_cast<std::uint16_t>((static_cast<std::uint32_t>(exponent + bias) << mantissa_bits) |
                                    fraction);
}

template <class T>
T make(DType dtype, std::uint32_t value) {
  if (dtype == DType::f16) return static_cast<T>(small_float(value, 5));
  if (dtype == DType::bf16) return static_cast<T>(small_float(value, 8));
  return static_cast<T>(value);
}

template <class T>
using Table = std::array<T, kMaxKinds>;

// By kind: what `rank` pushes.
template <class T>
Table<T> contributions(const Pattern& pattern, std::uint32_t rank) {
  Table<T> table{};
  const std::uint32_t kinds = kinds_of(pattern);
  for (std::uint32_t x = 0; x < kinds; ++x)
    table[x] = make<T>(pattern.dtype, x + extra_of(pattern, rank));
  return table;
}

// By kind: the sum of what all push.
template <class T>
Table<T> sums(const Pattern& pattern) {
  Table<T> table{};
  const std::uint32_t kinds = kinds_of(pattern);
  std::uint32_t extras = 0;
  for (std::uint32_t rank = 0; rank < pattern.workers; ++rank)
    extras += extra_of(pattern, rank);
  for (std::uint32_t x = 0; x < kinds; ++x)
    table[x] = make<T>(pattern.dtype, pattern.workers * x + extras);
  return table;
}

// That `bytes`, which begin at element `first`, are those of the table.
template <class T>
std::string check_table(const Pattern& pattern, const Table<T>& table, std::uint64_t round,
                        std::span<const std::byte> bytes, std::uint64_t first, const char* what) {
  const std::uint32_t kinds = kinds_of(pattern);
  const T* from = reinterpret_cast<const T*>(bytes.data());
  const std::size_t count = bytes.size() / sizeof(T);
  for (std::size_t i = 0; i < count; ++i) {
    const T expected = table[kind_of(first + i, round, kinds)];
    if (std::memcmp(&from[i], &expected, sizeof(T)) == 0) continue;
    return fmt::format("element {} of {} in round {} is {}, {} is {}", first + i, first + count, round,
                       from[i], what, expected);
  }
  return {};
}

template <class Function>
auto with_type(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::f32: return function(float{});
    case DType::f64: return function(double{});
    case DType::f16:
    case DType::bf16: return function(std::uint16_t{});
    case DType::i8:
    case DType::u8: return function(std::uint8_t{});
    case DType::i32: return function(std::int32_t{});
    case DType::i64: break;
  }
  return function(std::int64_t{});
}

// Repeats itself every kRawPeriod bytes.
constexpr std::size_t kRawPeriod = 64 * 1024;
constexpr std::byte raw_byte(std::size_t j) {
  return static_cast<std::byte>((j * 131 + 7 + (j >> 8)) & 0xff);
}

const std::array<std::byte, kRawPeriod>& raw_period() {
  static const auto period = [] {
    std::array<std::byte, kRawPeriod> bytes;
    for (std::size_t j = 0; j < bytes.size(); ++j)
      bytes[j] = raw_byte(j);
    return bytes;
  }();
  return period;
}

}  // namespace

// With two kinds, the least that tells elements apart, the largest sum is workers + workers / 2.
std::uint32_t max_workers(DType dtype) { return max_sum(dtype) * 2 / 3; }

void fill_contribution(const Pattern& pattern, std::uint32_t rank, std::uint64_t round,
                       std::span<std::byte> out) {
  with_type(pattern.dtype, [&](auto sample) {
    using T = decltype(sample);
    const Table<T> table = contributions<T>(pattern, rank);
    const std::uint32_t kinds = kinds_of(pattern);
    T* to = reinterpret_cast<T*>(out.data());
    const std::size_t count = out.size() / sizeof(T);
    for (std::size_t i = 0; i < count; ++i)
      to[i] = table[kind_of(i, round, kinds)];
  });
}

std::string check_sum(const Pattern& pattern, std::uint64_t round, std::span<const std::byte> sum,
                      std::uint64_t first) {
  return with_type(pattern.dtype, [&](auto sample) {
    return check_table(pattern, sums<decltype(sample)>(pattern), round, sum, first, "its sum");
  });
}

std::string check_contribution(const Pattern& pattern, std::uint32_t rank, std::uint64_t round,
                               std::span<const std::byte> bytes, std::uint64_t first) {
  return with_type(pattern.dtype, [&](auto sample) {
    return check_table(pattern, contributions<decltype(sample)>(pattern, rank), round, bytes, first,
                       "what its root has");
  });
}

void fill_raw(std::span<std::byte> out) {
  for (std::size_t begin = 0; begin < out.size(); begin += kRawPeriod)
    std::memcpy(out.data() + begin, raw_period().data(), std::min(kRawPeriod, out.size() - begin));
}

std::string check_raw(std::span<const std::byte> bytes) {
  for (std::size_t begin = 0; begin < bytes.size(); begin += kRawPeriod) {
    const auto part = bytes.subspan(begin, std::min(kRawPeriod, bytes.size() - begin));
    if (std::memcmp(part.data(), raw_period().data(), part.size()) == 0) continue;
    const auto wrong = std::mismatch(part.begin(), part.end(), raw_period().begin()).first;
    return fmt::format("byte {} of {} is wrong", begin + static_cast<std::size_t>(wrong - part.begin()),
                       bytes.size());
  }
  return {};
}

}  // namespace bps::bench

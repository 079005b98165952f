// Averages of i64, which are exact or say that they are not.
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "proto/reduce/reduce.h"

namespace bps::reduce {
namespace {

using Elements = std::vector<std::int64_t>;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();

std::byte* bytes_of(Elements& elements) { return reinterpret_cast<std::byte*>(elements.data()); }

}  // namespace

TEST_CASE("checked: an average of i64 is the truncated quotient of the exact sum, in one step or two") {
  std::mt19937_64 random(3);
  for (const std::size_t count : {1, 7, 256, 257, 1000}) {
    std::vector<Elements> inputs(3, Elements(count));
    for (Elements& input : inputs) {
      for (std::int64_t& element : input)
        element = static_cast<std::int64_t>(random()) >> (2 + random() % 60);
    }
    Elements accumulators(count), out(count), expected(count);
    for (std::size_t i = 0; i < count; ++i)
      expected[i] = (inputs[0][i] + inputs[1][i] + inputs[2][i]) / 3;
    const std::byte* const others[] = {bytes_of(inputs[1]), bytes_of(inputs[2])};
    CHECK(finish_checked(bytes_of(out), nullptr, others, count, 3, bytes_of(inputs[0])));
    CHECK(out == expected);
    CHECK(accumulate_checked(bytes_of(accumulators), std::span(others).first(1), count, bytes_of(inputs[0])));
    CHECK(
        finish_checked(bytes_of(accumulators), bytes_of(accumulators), std::span(others).last(1), count, 3));
    CHECK(accumulators == expected);
  }
}

TEST_CASE("checked: one sum beyond i64 is noticed, wherever it is, and no other is") {
  for (const std::size_t count : {1, 256, 300}) {
    for (const std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
      const auto fits = [&](std::int64_t a, std::int64_t b) {
        Elements first(count, 5), second(count, -6), out(count);
        first[at] = a;
        second[at] = b;
        const std::byte* const input = bytes_of(second);
        return finish_checked(bytes_of(out), nullptr, std::span(&input, 1), count, 2, bytes_of(first));
      };
      CHECK(fits(kMost, kLeast));
      CHECK(fits(kMost, 0));
      CHECK(fits(kLeast, 0));
      CHECK(fits(kMost - 1, 1));
      CHECK_FALSE(fits(kMost, 1));
      CHECK_FALSE(fits(kLeast, -1));
      CHECK_FALSE(fits(kMost, kMost));
      CHECK_FALSE(fits(kLeast, kLeast));
    }
  }
}

}  // namespace bps::reduce

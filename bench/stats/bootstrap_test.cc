#include "bench/stats/bootstrap.h"

#include <catch2/catch.hpp>

namespace bps::bench {
namespace {

// `blocks` of 50 rounds, of which the last two take `slow[i]`, the others `usual`.
std::vector<double> rounds(double usual, const std::vector<double>& slow) {
  std::vector<double> all;
  for (const double last : slow) {
    all.insert(all.end(), 48, usual);
    all.insert(all.end(), 2, last);
  }
  return all;
}

}  // namespace

TEST_CASE("what blocks do not differ in has a narrow interval") {
  const Median m = percentile_difference(rounds(1, {9, 9, 9, 9}), rounds(1, {4, 4, 4, 4}), 99, 50);
  CHECK(m.value == 5);
  CHECK(m.low == 5);
  CHECK(m.high == 5);
}

TEST_CASE("a tail that one block of eight makes is not sure") {
  const auto a = rounds(1, {9, 1, 1, 1, 1, 1, 1, 1}), b = rounds(1, {1, 1, 1, 1, 1, 1, 1, 1});
  // 2 of 400 rounds are slow, where the 99th percentile leaves out 4; but in 7 % of the draws they are 6 or
  // more.
  const Median m = percentile_difference(a, b, 99, 50);
  CHECK(m.value == 0);
  CHECK(m.low == 0);
  CHECK(m.high == 8);
}

TEST_CASE("what disturbed both series is no difference") {
  const auto a = rounds(1, {9, 2, 3, 9, 2, 9, 4, 2});
  std::vector<double> b = a;
  for (double& us : b)
    us -= 0.5;
  const Median m = percentile_difference(a, b, 99, 50);
  CHECK(m.value == 0.5);
  CHECK(m.low == 0.5);
  CHECK(m.high == 0.5);
}

TEST_CASE("one block has no interval, and a short last block counts") {
  const Median one = percentile_difference(rounds(1, {9}), rounds(1, {4}), 99, 50);
  CHECK(one.value == 5);
  CHECK(one.low == one.high);
  const std::vector<double> a{1, 1, 1, 7}, b{0, 0, 0, 0};
  CHECK(percentile_difference(a, b, 100, 3).value == 7);
  CHECK(percentile_difference(a, b, 100, 3).low == 1);
  CHECK(percentile_difference({}, {}, 99, 50).value == 0);
}

}  // namespace bps::bench

#include "bench/stats/stats.h"

#include <catch2/catch.hpp>

namespace bps::bench {

TEST_CASE("percentiles by nearest rank") {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i)
    values.push_back(i);
  CHECK(percentile(values, 50) == 50.5);
  CHECK(percentile(values, 99) == 99);
  CHECK(percentile(values, 100) == 100);
  CHECK(percentile({7}, 50) == 7);
  CHECK(percentile({3, 1}, 50) == 2);  // not the faster of two rounds
  CHECK(percentile({}, 50) == 0);
}

TEST_CASE("the median and its interval") {
  CHECK(median_of({3, 1, 2}).value == 2);
  CHECK(median_of({4, 1, 2, 3}).value == 2.5);
  // Five values: nothing is 95 % sure, so all of them. Ten: the 2nd smallest to the 2nd largest (97.9 %).
  CHECK(median_of({5, 1, 2, 3, 4}).low == 1);
  CHECK(median_of({5, 1, 2, 3, 4}).high == 5);
  std::vector<double> ten;
  for (int i = 1; i <= 10; ++i)
    ten.push_back(i);
  CHECK(median_of(ten).low == 2);
  CHECK(median_of(ten).high == 9);
  CHECK(median_of({}).value == 0);
}

TEST_CASE("ratios of pairs") { CHECK(ratios({2, 9, 4}, {1, 0, 8}) == std::vector<double>{2, 0.5}); }

}  // namespace bps::bench

// Numbers about repeated measurements. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace bps::bench {

// The smallest value that at least `percent` of the values do not exceed (nearest rank); 0 of none. 50 is the
// median: of an even count the mean of the two in the middle.
double percentile(std::vector<double> values, double percent);

struct Median {
  double value = 0;
  double low = 0;  // 95 % confidence interval, from order statistics: no assumption about the distribution
  double high = 0;
};
Median median_of(std::vector<double> values);

// a[i] / b[i]; pairs with b[i] <= 0 are left out.
std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace bps::bench

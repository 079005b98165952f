#include "bench/stats/stats.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace bps::bench {

double percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  if (percent == 50) return median_of(std::move(values)).value;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(std::ceil(percent / 100 * static_cast<double>(values.size())));
  return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
}

Median median_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  Median median;
  median.value = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
  // The number of values below the true median is binomial(n, 1/2): the interval from the k-th smallest to
  // the k-th largest misses it with probability 2 P(X < k).
  std::size_t k = 0;
  double below = 0;
  double term = std::pow(0.5, static_cast<double>(n));
  while (k < n / 2 && 2 * (below + term) <= 0.05) {
    below += term;
    term *= static_cast<double>(n - k) / static_cast<double>(k + 1);
    ++k;
  }
  // With fewer than six values no interval is that sure: then it is all of them.
  const std::size_t skip = k == 0 ? 0 : k - 1;
  median.low = values[skip];
  median.high = values[n - 1 - skip];
  return median;
}

std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> out;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (b[i] > 0) out.push_back(a[i] / b[i]);
  }
  return out;
}

}  // namespace bps::bench

#include "bench/stats/bootstrap.h"

#include <algorithm>
#include <cstdint>
#include <random>

namespace bps::bench {
namespace {

constexpr std::size_t kResamples = 4000;
constexpr std::uint64_t kSeed = 1;

void append_block(std::vector<double>& to, const std::vector<double>& from, std::size_t block,
                  std::size_t block_rounds) {
  const std::size_t begin = std::min(block * block_rounds, from.size());
  const std::size_t end = std::min(begin + block_rounds, from.size());
  to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(begin),
            from.begin() + static_cast<std::ptrdiff_t>(end));
}

}  // namespace

Median percentile_difference(const std::vector<double>& a, const std::vector<double>& b, double percent,
                             std::size_t block_rounds) {
  const double value = percentile(a, percent) - percentile(b, percent);
  const std::size_t blocks = (std::min(a.size(), b.size()) + block_rounds - 1) / block_rounds;
  if (blocks < 2) return {value, value, value};
  std::mt19937_64 random(kSeed);
  std::vector<double> differences;
  std::vector<double> of_a, of_b;
  for (std::size_t resample = 0; resample < kResamples; ++resample) {
    of_a.clear();
    of_b.clear();
    for (std::size_t i = 0; i < blocks; ++i) {
      const std::size_t block = random() % blocks;
      append_block(of_a, a, block, block_rounds);
      append_block(of_b, b, block, block_rounds);
    }
    differences.push_back(percentile(of_a, percent) - percentile(of_b, percent));
  }
  return {value, std::min(value, percentile(differences, 2.5)),
          std::max(value, percentile(differences, 97.5))};
}

}  // namespace bps::bench

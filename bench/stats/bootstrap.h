// How sure a difference of percentiles is, of rounds that came in blocks. Pure.
//
// Rounds of a block are much alike (what disturbs one disturbs its neighbours), so single rounds are no
// independent samples; and the blocks of two series took turns, so what disturbed both is in both. Hence a
// paired bootstrap of whole blocks: as many blocks as there are, drawn with replacement, the same of both
// series, and the difference of the percentiles of all their rounds; many times.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/stats/stats.h"

namespace bps::bench {

// percentile(a) - percentile(b) with its 95 % confidence interval, which has that value in it; block i of
// both is the rounds from i * block_rounds on, the last may be shorter. The same numbers give the same
// interval. With one block there is none: all three are the value.
Median percentile_difference(const std::vector<double>& a, const std::vector<double>& b, double percent,
                             std::size_t block_rounds);

}  // namespace bps::bench

#include "bench/reduce/order_model.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace bps::bench {

std::string_view name_of(Skew skew) {
  constexpr std::string_view names[] = {"no skew", "random order", "rank 0 late"};
  return names[static_cast<std::size_t>(skew)];
}

std::vector<Piece> arrivals(const Traffic& traffic, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  const std::uint32_t late = traffic.skew == Skew::rank_0_late ? traffic.pieces : 0;
  const std::uint32_t steps = traffic.partitions * traffic.pieces;
  std::vector<std::uint32_t> order(traffic.lanes);
  std::iota(order.begin(), order.end(), 0);
  std::vector<Piece> out;
  out.reserve(std::size_t{steps} * traffic.lanes);
  for (std::uint32_t step = 0; step < steps + late; ++step) {
    if (traffic.skew != Skew::none) std::shuffle(order.begin(), order.end(), engine);
    for (const std::uint32_t lane : order) {
      const std::uint32_t behind = lane == 0 ? late : 0;
      if (step < behind || step - behind >= steps) continue;
      out.push_back({lane, (step - behind) / traffic.pieces, (step - behind) % traffic.pieces});
    }
  }
  return out;
}

}  // namespace bps::bench

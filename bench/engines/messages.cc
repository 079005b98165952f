#include "bench/engines/messages.h"

#include <numeric>

namespace bps::bench {
namespace {

// Where part `index` of them begins.
std::uint64_t begin_of(const std::vector<std::uint64_t>& lengths, std::uint32_t index) {
  return std::accumulate(lengths.begin(), lengths.begin() + index, std::uint64_t{0});
}

}  // namespace

std::vector<std::uint64_t> lengths_at(const MessageRound& round, std::uint32_t place) {
  std::vector<std::uint64_t> lengths;
  for (std::size_t other = 0; other < round.parts.size(); ++other)
    lengths.push_back(round.parts[(place + other) % round.parts.size()]);
  return lengths;
}

std::vector<Arrival> arrivals(const MessageRound& round, std::uint32_t place, std::uint32_t root) {
  const auto& parts = round.parts;
  const auto ranks = static_cast<std::uint32_t>(parts.size());
  if (round.use == ExchangeUse::send) return {{(place + ranks - 1) % ranks, 0, 0, begin_of(parts, ranks)}};
  if (round.use == ExchangeUse::scatter)
    return {{root, begin_of(parts, place), begin_of(parts, place), parts[place]}};
  std::vector<Arrival> all;
  if (round.use == ExchangeUse::gather && place != root) return all;
  const std::vector<std::uint64_t> taken =
      round.use == ExchangeUse::gather ? parts : lengths_at(round, place);
  for (std::uint32_t giver = 0; giver < ranks; ++giver) {
    const std::uint64_t at_giver =
        round.use == ExchangeUse::gather ? begin_of(parts, giver) : begin_of(lengths_at(round, giver), place);
    all.push_back({giver, at_giver, begin_of(taken, giver), taken[giver]});
  }
  return all;
}

}  // namespace bps::bench

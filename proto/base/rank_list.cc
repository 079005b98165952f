#include "proto/base/rank_list.h"

#include <algorithm>

namespace bps {

RankList::RankList(std::vector<Rank> ranks) {
  if (ranks.empty()) return;
  std::vector<std::pair<Rank, std::uint32_t>> places;
  places.reserve(ranks.size());
  for (const Rank rank : ranks)
    places.emplace_back(rank, static_cast<std::uint32_t>(places.size()));
  std::sort(places.begin(), places.end());
  list_ = std::make_shared<const List>(List{std::move(ranks), std::move(places)});
}

std::vector<Rank> RankList::shortest(std::vector<Rank> ranks, std::uint32_t world_size) {
  if (ranks.size() != world_size) return ranks;
  for (std::uint32_t place = 0; place < world_size; ++place) {
    if (ranks[place].value != place) return ranks;
  }
  return {};
}

std::optional<std::uint32_t> RankList::place_of(Rank rank) const {
  if (is_all()) return rank.value;
  const auto found = std::lower_bound(list_->places.begin(), list_->places.end(), std::pair(rank, 0u));
  if (found == list_->places.end() || found->first != rank) return std::nullopt;
  return found->second;
}

}  // namespace bps

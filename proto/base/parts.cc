#include "proto/base/parts.h"

#include <algorithm>
#include <functional>

namespace bps {

Parts::Parts(const std::vector<std::uint64_t>& counts, RankList ranks) {
  if (counts.empty()) return;
  Table table{std::move(ranks), std::nullopt, {}};
  if (counts.size() == 1) {
    table.even = counts.front();
  } else {
    table.ends.reserve(counts.size());
    std::uint64_t end = 0;
    for (const std::uint64_t count : counts)
      table.ends.push_back(end += count);
  }
  table_ = std::make_shared<const Table>(std::move(table));
}

std::vector<std::uint64_t> Parts::shortest(std::vector<std::uint64_t> counts) {
  const bool are_equal =
      std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
  if (are_equal && counts.size() > 1) counts.erase(counts.begin() + 1, counts.end());
  return counts;
}

bool Parts::fit(const std::vector<std::uint64_t>& counts, std::uint64_t ranks, std::uint64_t elements) {
  if (counts.size() != 1 && counts.size() != ranks) return false;
  std::uint64_t left = elements;
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    const std::uint64_t count = counts.size() == 1 ? counts.front() : counts[rank];
    if (count > left) return false;
    left -= count;
  }
  return left == 0;
}

std::uint64_t Parts::begin_at(std::uint32_t place) const {
  if (table_->even) return *table_->even * place;
  return place == 0 ? 0 : table_->ends[place - 1];
}

std::uint64_t Parts::elements_at(std::uint32_t place) const {
  return table_->even ? *table_->even : table_->ends[place] - begin_at(place);
}

bool Parts::cover(std::uint64_t begin, std::uint64_t elements, std::uint64_t ranks) const {
  const std::uint64_t end = begin + elements;
  if (end < begin) return false;
  if (table_ == nullptr) return false;
  if (table_->even) return end == 0 || (*table_->even > 0 && (end - 1) / *table_->even < ranks);
  return table_->ends.size() <= ranks && end <= table_->ends.back();
}

std::uint32_t Parts::owner_of(std::uint64_t element) const {
  if (table_->even) return static_cast<std::uint32_t>(element / *table_->even);
  const auto end = std::upper_bound(table_->ends.begin(), table_->ends.end(), element);
  return static_cast<std::uint32_t>(end - table_->ends.begin());
}

std::vector<Parts::Slice> Parts::owners(std::uint64_t begin, std::uint64_t elements) const {
  std::vector<Slice> slices;
  const std::uint64_t end = begin + elements;
  for (std::uint64_t from = begin; from < end;) {
    const std::uint32_t place = owner_of(from);
    const std::uint64_t to = std::min(begin_at(place) + elements_at(place), end);
    slices.push_back({table_->ranks.at(place), from - begin, to - from});
    from = to;
  }
  return slices;
}

std::optional<Rank> Parts::only_owner(std::uint64_t begin, std::uint64_t elements) const {
  if (elements == 0) return std::nullopt;
  const std::uint32_t place = owner_of(begin);
  if (begin + elements > begin_at(place) + elements_at(place)) return std::nullopt;
  return table_->ranks.at(place);
}

}  // namespace bps

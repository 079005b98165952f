#include "proto/base/parts.h"

#include <algorithm>
#include <functional>

namespace bps {

Parts::Parts(const std::vector<std::uint64_t>& counts, RankList ranks) : ranks_(std::move(ranks)) {
  if (counts.size() == 1) even_ = counts.front();
  if (counts.size() < 2) return;
  std::vector<std::uint64_t> ends;
  ends.reserve(counts.size());
  std::uint64_t end = 0;
  for (const std::uint64_t count : counts)
    ends.push_back(end += count);
  ends_ = std::make_shared<const std::vector<std::uint64_t>>(std::move(ends));
}

std::vector<std::uint64_t> Parts::shortest(std::vector<std::uint64_t> counts) {
  const bool are_equal =
      std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
  if (are_equal && counts.size() > 1) counts.resize(1);
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
  if (even_) return *even_ * place;
  return place == 0 ? 0 : (*ends_)[place - 1];
}

std::uint64_t Parts::elements_at(std::uint32_t place) const {
  return even_ ? *even_ : (*ends_)[place] - begin_at(place);
}

bool Parts::cover(std::uint64_t begin, std::uint64_t elements, std::uint64_t ranks) const {
  const std::uint64_t end = begin + elements;
  if (end < begin) return false;
  if (even_) return end == 0 || (*even_ > 0 && (end - 1) / *even_ < ranks);
  return ends_ != nullptr && ends_->size() <= ranks && end <= ends_->back();
}

std::uint32_t Parts::owner_of(std::uint64_t element) const {
  if (even_) return static_cast<std::uint32_t>(element / *even_);
  const auto end = std::upper_bound(ends_->begin(), ends_->end(), element);
  return static_cast<std::uint32_t>(end - ends_->begin());
}

std::vector<Parts::Slice> Parts::owners(std::uint64_t begin, std::uint64_t elements) const {
  std::vector<Slice> slices;
  const std::uint64_t end = begin + elements;
  for (std::uint64_t from = begin; from < end;) {
    const std::uint32_t place = owner_of(from);
    const std::uint64_t to = std::min(begin_at(place) + elements_at(place), end);
    slices.push_back({ranks_.at(place), from - begin, to - from});
    from = to;
  }
  return slices;
}

std::optional<Rank> Parts::only_owner(std::uint64_t begin, std::uint64_t elements) const {
  if (elements == 0) return std::nullopt;
  const std::uint32_t place = owner_of(begin);
  if (begin + elements > begin_at(place) + elements_at(place)) return std::nullopt;
  return ranks_.at(place);
}

}  // namespace bps

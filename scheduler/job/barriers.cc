#include "scheduler/job/barriers.h"

#include <algorithm>

namespace bps {

bool Barriers::arrive(Rank rank, std::uint64_t number) {
  std::uint64_t& arrived = arrived_[rank.value];
  if (number < arrived) return false;
  const bool was_behind = arrived == done_;
  arrived = number + 1;
  ++changes_;
  if (!was_behind || --behind_ > 0) return false;
  done_ = *std::min_element(arrived_.begin(), arrived_.end());
  behind_ = static_cast<std::uint32_t>(std::count(arrived_.begin(), arrived_.end(), done_));
  return true;
}

void Barriers::restore(std::vector<std::uint64_t> arrived) {
  arrived_ = std::move(arrived);
  done_ = *std::min_element(arrived_.begin(), arrived_.end());
  behind_ = static_cast<std::uint32_t>(std::count(arrived_.begin(), arrived_.end(), done_));
}

void Barriers::drop(Rank rank) {
  if (!is_lost(rank)) --there_;
  arrived_[rank.value] = UINT64_MAX;
  ++changes_;
  restore(std::move(arrived_));
}

void Barriers::leave(Rank rank) {
  const std::uint64_t from = arrived_[rank.value];
  if (!blocked_ || from < blocked_->from) blocked_ = Blocked{from, rank};
}

}  // namespace bps

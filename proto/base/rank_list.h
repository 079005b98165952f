// The ranks that share a tensor, in the order in which what they give is summed: all of the job, or those of
// a group.
//
// Pure. Immutable, so copies share the list, and any thread may read it. A look-up takes log n steps.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "proto/base/ids.h"

namespace bps {

class RankList {
 public:
  RankList() = default;  // all of the job
  // As in a declaration: no rank twice. Empty: all of the job.
  explicit RankList(std::vector<Rank> ranks);

  // The shortest way to say the same in a job of so many ranks.
  static std::vector<Rank> shortest(std::vector<Rank> ranks, std::uint32_t world_size);

  bool is_all() const { return list_ == nullptr; }
  std::uint32_t size(std::uint32_t world_size) const {
    return is_all() ? world_size : static_cast<std::uint32_t>(list_->ranks.size());
  }
  // Of a rank of the job.
  bool has(Rank rank) const { return place_of(rank).has_value(); }
  std::optional<std::uint32_t> place_of(Rank rank) const;
  Rank at(std::uint32_t place) const { return is_all() ? Rank{place} : list_->ranks[place]; }
  const std::vector<Rank>& ranks() const { return list_->ranks; }  // not of all

 private:
  struct List {
    std::vector<Rank> ranks;
    std::vector<std::pair<Rank, std::uint32_t>> places;  // by rank
  };
  std::shared_ptr<const List> list_;
};

}  // namespace bps

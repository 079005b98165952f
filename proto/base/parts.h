// A tensor that is cut into parts, one for each rank that shares it, in the order of these: whose is which
// element.
//
// Pure. Immutable, so copies share their numbers, and any thread may read them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/rank_list.h"

namespace bps {

class Parts {
 public:
  // Elements of one part within some range of the tensor.
  struct Slice {
    Rank rank;                // whose part it is
    std::uint64_t begin = 0;  // from the beginning of the range
    std::uint64_t elements = 0;
    friend bool operator==(const Slice&, const Slice&) = default;
  };

  Parts() = default;  // the tensor has none
  // As in a declaration: one number if all parts are equal, else one for each of the ranks.
  explicit Parts(const std::vector<std::uint64_t>& counts, RankList ranks = {});

  // The shortest way to say the same: see the constructor.
  static std::vector<std::uint64_t> shortest(std::vector<std::uint64_t> counts);
  // They are the parts of so many ranks, and together have so many elements.
  static bool fit(const std::vector<std::uint64_t>& counts, std::uint64_t ranks, std::uint64_t elements);

  explicit operator bool() const { return table_ != nullptr; }
  // Of one of the ranks.
  std::uint64_t begin(Rank rank) const { return begin_at(*table_->ranks.place_of(rank)); }
  std::uint64_t elements(Rank rank) const { return elements_at(*table_->ranks.place_of(rank)); }

  // So many ranks have these elements. To be asked before owners() if it is not known.
  bool cover(std::uint64_t begin, std::uint64_t elements, std::uint64_t ranks) const;
  // Whose the elements from `begin` on are: no slice is empty.
  std::vector<Slice> owners(std::uint64_t begin, std::uint64_t elements) const;
  // The same if they are all of one rank.
  std::optional<Rank> only_owner(std::uint64_t begin, std::uint64_t elements) const;

 private:
  // By the place of its rank.
  std::uint64_t begin_at(std::uint32_t place) const;
  std::uint64_t elements_at(std::uint32_t place) const;
  std::uint32_t owner_of(std::uint64_t element) const;

  struct Table {
    RankList ranks;
    std::optional<std::uint64_t> even;
    std::vector<std::uint64_t> ends;  // by place, of unequal ones
  };
  std::shared_ptr<const Table> table_;
};

}  // namespace bps

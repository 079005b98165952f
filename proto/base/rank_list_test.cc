#include "proto/base/rank_list.h"

#include <catch2/catch.hpp>

#include "proto/base/parts.h"

namespace bps {
namespace {

using Ranks = std::vector<Rank>;

}  // namespace

TEST_CASE("rank list: all of the job, or those of a group in its order") {
  const RankList all;
  CHECK(all.is_all());
  CHECK(RankList(Ranks{}).is_all());
  CHECK(all.size(7) == 7);
  CHECK(all.has(Rank{3}));
  CHECK(all.place_of(Rank{3}) == 3);
  CHECK(all.at(3) == Rank{3});
  const RankList group({Rank{5}, Rank{0}, Rank{3}});
  CHECK_FALSE(group.is_all());
  CHECK(group.size(7) == 3);
  CHECK(group.place_of(Rank{5}) == 0);
  CHECK(group.place_of(Rank{0}) == 1);
  CHECK(group.place_of(Rank{3}) == 2);
  for (const std::uint32_t other : {1u, 2u, 4u, 6u, 4000u})
    CHECK_FALSE(group.has(Rank{other}));
  CHECK(group.at(2) == Rank{3});
}

TEST_CASE("rank list: that of all ranks in their order is empty") {
  CHECK(RankList::shortest({Rank{0}, Rank{1}, Rank{2}}, 3).empty());
  CHECK(RankList::shortest({Rank{0}, Rank{1}}, 3).size() == 2);
  CHECK(RankList::shortest({Rank{0}, Rank{2}, Rank{1}}, 3).size() == 3);
  CHECK(RankList::shortest({}, 3).empty());
}

TEST_CASE("parts: those of a group are its ranks', in its order") {
  const RankList group({Rank{5}, Rank{0}, Rank{3}});
  const Parts even({4}, group);
  CHECK(even.begin(Rank{5}) == 0);
  CHECK(even.begin(Rank{3}) == 8);
  CHECK(even.only_owner(4, 4) == Rank{0});
  const Parts uneven({2, 0, 5}, group);
  CHECK(uneven.begin(Rank{0}) == 2);
  CHECK(uneven.elements(Rank{0}) == 0);
  CHECK(uneven.elements(Rank{3}) == 5);
  CHECK(uneven.owners(1, 3) == std::vector<Parts::Slice>{{Rank{5}, 0, 1}, {Rank{3}, 1, 2}});
  CHECK(uneven.only_owner(2, 5) == Rank{3});
}

}  // namespace bps

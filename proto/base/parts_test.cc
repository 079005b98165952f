#include "proto/base/parts.h"

#include <catch2/catch.hpp>
#include <limits>

namespace bps {
namespace {

using Counts = std::vector<std::uint64_t>;
using Slices = std::vector<Parts::Slice>;

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

}  // namespace

TEST_CASE("parts: those of a declaration fit the ranks and the elements, or not") {
  CHECK(Parts::fit({3, 4, 0}, 3, 7));
  CHECK(Parts::fit({4}, 3, 12));
  CHECK(Parts::fit({0}, 3, 0));
  CHECK(Parts::fit({7}, 1, 7));
  CHECK_FALSE(Parts::fit({3, 4}, 3, 7));
  CHECK_FALSE(Parts::fit({3, 4, 1}, 3, 7));
  CHECK_FALSE(Parts::fit({3, 3, 0}, 3, 7));
  CHECK_FALSE(Parts::fit({4}, 3, 11));
  CHECK_FALSE(Parts::fit({}, 3, 0));
  CHECK_FALSE(Parts::fit({kMost, 8}, 2, 7));  // they wrap
  CHECK_FALSE(Parts::fit({kMost / 2 + 1}, 2, 0));
}

TEST_CASE("parts: equal ones are said by one number") {
  CHECK(Parts::shortest({4, 4, 4}) == Counts{4});
  CHECK(Parts::shortest({4}) == Counts{4});
  CHECK(Parts::shortest({4, 4, 5}) == Counts{4, 4, 5});
  CHECK(Parts::shortest({}).empty());
}

TEST_CASE("parts: whose is which element") {
  CHECK_FALSE(Parts());
  CHECK_FALSE(Parts(Counts{}));
  const Parts even({4});
  CHECK(even);
  CHECK(even.begin(Rank{2}) == 8);
  CHECK(even.elements(Rank{2}) == 4);
  CHECK(even.owners(2, 7) == Slices{{Rank{0}, 0, 2}, {Rank{1}, 2, 4}, {Rank{2}, 6, 1}});
  CHECK(even.only_owner(4, 4) == Rank{1});
  CHECK(even.only_owner(5, 2) == Rank{1});
  CHECK_FALSE(even.only_owner(3, 2));
  CHECK_FALSE(even.only_owner(3, 0));

  const Parts uneven({2, 0, 0, 5, 0, 1});
  CHECK(uneven);
  CHECK(uneven.begin(Rank{0}) == 0);
  CHECK(uneven.begin(Rank{3}) == 2);
  CHECK(uneven.elements(Rank{1}) == 0);
  CHECK(uneven.elements(Rank{3}) == 5);
  CHECK(uneven.owners(0, 8) == Slices{{Rank{0}, 0, 2}, {Rank{3}, 2, 5}, {Rank{5}, 7, 1}});
  CHECK(uneven.owners(6, 2) == Slices{{Rank{3}, 0, 1}, {Rank{5}, 1, 1}});
  CHECK(uneven.owners(6, 0).empty());
  CHECK(uneven.only_owner(2, 5) == Rank{3});
  CHECK_FALSE(uneven.only_owner(1, 2));
}

TEST_CASE("parts: what is beyond them is told before it is looked up") {
  CHECK(Parts({4}).cover(100, 8, 27));
  CHECK_FALSE(Parts({4}).cover(100, 8, 26));
  CHECK_FALSE(Parts({1}).cover(std::uint64_t{1} << 33, 1, 4096));
  CHECK_FALSE(Parts({0}).cover(0, 1, 4096));
  CHECK(Parts({0}).cover(0, 0, 4096));
  CHECK(Parts({2, 3}).cover(1, 4, 2));
  CHECK_FALSE(Parts({2, 3}).cover(1, 5, 2));
  CHECK_FALSE(Parts({2, 3}).cover(1, 4, 1));
  CHECK_FALSE(Parts({2, 3}).cover(kMost, 2, 2));
}

}  // namespace bps

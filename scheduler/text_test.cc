#include "scheduler/text.h"

#include <catch2/catch.hpp>
#include <vector>

namespace bps {

TEST_CASE("texts: ranks and seconds") {
  CHECK(ranks_text(std::vector{Rank{2}}) == "rank 2");
  CHECK(ranks_text(std::vector{Rank{2}, Rank{3}}) == "ranks 2 and 3");
  CHECK(ranks_text(std::vector{Rank{1}, Rank{2}, Rank{5}}) == "ranks 1, 2 and 5");
  std::vector<Rank> many;
  for (std::uint32_t i = 0; i < 20; ++i)
    many.push_back(Rank{i});
  CHECK(ranks_text(many) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 4 more");

  CHECK(seconds_text(std::chrono::seconds(60)) == "60 s");
  CHECK(seconds_text(std::chrono::milliseconds(310)) == "0.3 s");
  CHECK(seconds_text(std::chrono::milliseconds(2460)) == "2.5 s");
  CHECK(seconds_text(Duration{0}) == "0 s");
}

}  // namespace bps

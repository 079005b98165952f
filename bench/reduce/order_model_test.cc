#include "bench/reduce/order_model.h"

#include <catch2/catch.hpp>
#include <map>

namespace bps::bench {
namespace {

TEST_CASE("every piece arrives once, those of a lane in order") {
  for (const Skew skew : kSkews) {
    const Traffic traffic{.lanes = 3, .partitions = 5, .pieces = 4, .skew = skew};
    const auto pieces = arrivals(traffic, 1);
    REQUIRE(pieces.size() == 3 * 5 * 4);
    std::map<std::uint32_t, std::uint32_t> next;
    for (const Piece& piece : pieces) {
      REQUIRE(piece.partition * 4 + piece.piece == next[piece.lane]++);
    }
  }
}

TEST_CASE("without skew lanes take turns by rank") {
  const auto pieces = arrivals({.lanes = 2, .partitions = 2, .pieces = 2, .skew = Skew::none}, 1);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    CHECK(pieces[i].lane == i % 2);
  }
}

TEST_CASE("a late rank 0 is one partition behind, and the last of every partition") {
  const auto pieces = arrivals({.lanes = 3, .partitions = 4, .pieces = 2, .skew = Skew::rank_0_late}, 1);
  std::map<std::uint32_t, std::uint32_t> last;
  for (const Piece& piece : pieces)
    last[piece.partition] = piece.lane;
  for (std::uint32_t partition = 0; partition < 4; ++partition)
    CHECK(last[partition] == 0);
  CHECK(pieces.front().lane != 0);
}

TEST_CASE("random orders differ from step to step and from seed to seed") {
  const Traffic traffic{.lanes = 8, .partitions = 2, .pieces = 1, .skew = Skew::random};
  const auto lanes = [&](std::uint64_t seed) {
    std::vector<std::uint32_t> out;
    for (const Piece& piece : arrivals(traffic, seed))
      out.push_back(piece.lane);
    return out;
  };
  const auto one = lanes(1);
  CHECK(one != lanes(2));
  CHECK(std::vector(one.begin(), one.begin() + 8) != std::vector(one.begin() + 8, one.end()));
}

}  // namespace
}  // namespace bps::bench

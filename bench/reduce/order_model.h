// When the pieces of contributions arrive at a server whose workers all push the same partitions in the same
// order over lanes of equal speed: step by step, each lane brings its next piece; a late lane is some steps
// behind. Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace bps::bench {

enum class Skew : std::uint8_t {
  none,         // in every step lane 0 comes first, then lane 1, ...
  random,       // in every step in another order
  rank_0_late,  // as random, but lane 0 is one partition behind
};
inline constexpr Skew kSkews[] = {Skew::none, Skew::random, Skew::rank_0_late};
std::string_view name_of(Skew skew);

struct Piece {
  std::uint32_t lane = 0;
  std::uint32_t partition = 0;
  std::uint32_t piece = 0;  // of the partition
};

struct Traffic {
  std::uint32_t lanes = 4;
  std::uint32_t partitions = 1;
  std::uint32_t pieces = 1;  // of a partition
  Skew skew = Skew::none;
};

// All pieces, each once, in the order in which they arrive; those of a lane in order.
std::vector<Piece> arrivals(const Traffic& traffic, std::uint64_t seed);

}  // namespace bps::bench

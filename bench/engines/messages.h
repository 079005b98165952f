// What a round of messages moves: which bytes of which rank's tensor arrive where. Pure.
//
//   send        a ring: each rank gives its whole tensor to the rank after it
//   scatter     the root's tensor, a part to each rank, where that part is in the root's tensor
//   gather      the reverse
//   all_to_all  rank i gives rank j as much as part (i + j) modulo n has, so all give and take a whole
//   tensor,
//               also if the parts are not equally long
//
// Ranks are known by their place in the group.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/cluster/worker_options.h"

namespace bps::bench {

struct MessageRound {
  ExchangeUse use = ExchangeUse::send;  // is_message()
  std::vector<std::uint64_t> parts;     // bytes of each, of one tensor
};

struct Arrival {
  std::uint32_t giver = 0;
  std::uint64_t at_giver = 0;  // first byte in its tensor
  std::uint64_t at_taker = 0;  // first byte in the output
  std::uint64_t bytes = 0;
  friend bool operator==(const Arrival&, const Arrival&) = default;
};

// What rank `place` has in its output after the round, also from itself.
std::vector<Arrival> arrivals(const MessageRound& round, std::uint32_t place, std::uint32_t root);

// Of all_to_all: bytes that rank `place` gives to each rank, and as many takes from each.
std::vector<std::uint64_t> lengths_at(const MessageRound& round, std::uint32_t place);

}  // namespace bps::bench

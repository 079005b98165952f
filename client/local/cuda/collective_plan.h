// Which calls of NCCL make up a collective of a local group, and what of it comes to this member. Pure.
//
// The problem: all members must make the same calls in the same groups, whatever each of them owns; a sum
// lands in a bounded ring on the device before it is copied to the host; and NCCL is fast with few large
// calls. So a run of as many equal partitions as there are members, one of each, is one reduce-scatter or
// all-gather; what is left over is a reduce or a broadcast of its own; and all of a portion begin together.
// Portions are cut, alike by all, so that none brings more than `portion_bytes` to any member.
//
// Of a broadcast only the root has anything: it sends each owner its partition. An answer of it may be wanted
// by all but the root, which must take part all the same, so its portions are small enough to go by way of
// the ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/local/local_group.h"

namespace bps {

struct CollectiveStep {
  enum class Kind : std::uint8_t { reduce_scatter, reduce, all_gather, broadcast, send, receive };
  Kind kind = Kind::reduce;
  std::size_t piece = 0;     // the first of a run
  std::size_t offset = 0;    // bytes into it
  std::size_t elements = 0;  // of one piece
  std::uint32_t peer = 0;    // root, or the other end
  friend bool operator==(const CollectiveStep&, const CollectiveStep&) = default;
};

// What of a sum is this member's.
struct CollectiveOutput {
  std::size_t piece = 0;
  std::size_t offset = 0;  // bytes into it
  std::size_t bytes = 0;
  bool is_input = false;  // it is the member's own input: no call brings it
  std::size_t at = 0;     // else: in the portion's part of the ring
  friend bool operator==(const CollectiveOutput&, const CollectiveOutput&) = default;
};

struct CollectivePortion {
  std::vector<CollectiveStep> steps;  // of this member; may be none
  std::vector<CollectiveOutput> outputs;
  std::size_t ring_bytes = 0;
};

struct CollectivePlace {
  std::uint32_t size = 1;
  std::uint32_t self = 0;
  std::size_t portion_bytes = 0;
};

// Portions of a reduce; none: nothing is to be done.
std::vector<CollectivePortion> plan_reduce(const CollectivePlace& place, const Collective& collective,
                                           std::span<const LocalPiece> pieces);
// Of a spread: outputs are the answers that this member has, `at` where in the ring its broadcasts are, if
// they go by way of that.
std::vector<CollectivePortion> plan_spread(const CollectivePlace& place, const Collective& collective,
                                           std::span<const LocalPiece> pieces);

std::size_t bytes_of(const LocalPiece& piece);

}  // namespace bps

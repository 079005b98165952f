// Which calls of NCCL make up the collectives of a batch, and what of them comes to this member. Pure.
//
// The problem: all members must make the same calls in the same groups, whatever each of them owns; a sum
// lands in a bounded ring on the device before it is copied to the host; and NCCL is fast with few large
// calls. So a run of as many equal partitions as there are members, one of each, is one reduce-scatter or
// all-gather; what is left over is a reduce or a broadcast of its own; and all of a portion begin together,
// of whatever tensors. Portions are cut, alike by all, so that none brings more than `portion_bytes` to any
// member.
//
// Of a broadcast only the root has anything: it sends each owner its partition, in portions without
// collectives. An answer of it may be wanted by all but the root, which must take part all the same, so its
// portions are small enough to go by way of the ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/src/group/local_group.h"

namespace bps {

// Items are the collectives of a batch, and pieces are numbered through it.
struct CollectiveStep {
  enum class Kind : std::uint8_t { reduce_scatter, reduce, all_gather, broadcast, send, receive };
  Kind kind = Kind::reduce;
  std::size_t piece = 0;     // the first of a run
  std::size_t offset = 0;    // bytes into it
  std::size_t elements = 0;  // of one piece
  std::uint32_t peer = 0;    // root, or the other end
  std::size_t item = 0;
  // Where in the portion's part of the ring it lands, at this member.
  std::optional<std::size_t> at = {};
  friend bool operator==(const CollectiveStep&, const CollectiveStep&) = default;
};

// What of a sum is this member's; or what of an answer it has to bring into the ring, because it does not
// want it itself.
struct CollectiveOutput {
  std::size_t piece = 0;
  std::size_t offset = 0;  // bytes into it
  std::size_t bytes = 0;
  bool is_input = false;  // it is the member's own input: no call brings it
  std::size_t at = 0;     // else: in the portion's part of the ring
  std::size_t item = 0;
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

class CollectivePlan {
 public:
  explicit CollectivePlan(const CollectivePlace& place) : place_(place), come_(place.size) {}

  // The next item.
  void add(bool is_spread, const Collective& collective, std::span<const LocalPiece> pieces);
  // Of all that was added; none: nothing is to be done.
  std::vector<CollectivePortion> take() { return std::move(portions_); }

 private:
  struct Item {
    std::size_t number = 0;
    std::size_t first = 0;  // piece
    const Collective& collective;
    std::span<const LocalPiece> pieces;
  };
  void reduce(const Item& item);
  void spread(const Item& item);
  void reduce_alone(const Item& item, std::size_t i);
  CollectivePortion& with_room(std::optional<std::uint32_t> member, std::size_t size);

  const CollectivePlace place_;
  std::size_t next_item_ = 0;
  std::size_t next_piece_ = 0;
  std::size_t expected_ = 0;       // pieces of the item
  std::vector<std::size_t> come_;  // bytes, to each member, with the last portion
  bool is_cut_ = true;             // what comes next is another one
  std::vector<CollectivePortion> portions_;
};

std::size_t bytes_of(const LocalPiece& piece);

}  // namespace bps

// Which lane owns the next partition. Every lane has a share of the job's bytes; partitions come one by one
// and must be placed at once, and at any time every lane should have its share of what has been placed so
// far, small tensors and large ones together.
//
// PartitionAssigner gives the next partition to a lane that has a deficit (less than its share so far), and
// among those to the one that would be the first to use up a partition at the rate of its share (EEVDF:
// Stoica and Abdel-Wahab, Earliest Eligible Virtual Deadline First, 1995). No lane gets ahead of its share by
// more than a partition. Deterministic; lanes with equal claims take turns in the order of their numbers.
//
// O(log lanes) per partition. Owner: a job's TensorCatalog. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <queue>
#include <span>
#include <vector>

#include "proto/base/ids.h"

namespace bps {

class PartitionAssigner {
 public:
  // `shares` sum to 1; a lane without a share gets nothing.
  PartitionAssigner(std::span<const double> shares, std::uint64_t partition_bytes);

  LaneIndex assign(std::uint64_t bytes);
  // The lane has these already. To be followed by set_shares, unless the lane has no share.
  void take(LaneIndex lane, std::uint64_t bytes) { lanes_[lane.value].bytes += bytes; }

  // The lane has these no more. Likewise.
  void give_back(LaneIndex lane, std::uint64_t bytes) {
    lanes_[lane.value].bytes -= std::min(lanes_[lane.value].bytes, bytes);
  }

  // Lanes come and go: from now on these are the shares. What a lane without a share still has counts for
  // nobody's; there may be more lanes than before, not fewer.
  void set_shares(std::span<const double> shares);

  std::uint64_t assigned_bytes(LaneIndex lane) const { return lanes_[lane.value].bytes; }
  // Of lanes with a share.
  std::uint64_t total_bytes() const { return total_; }

 private:
  struct Lane {
    double share = 0;
    std::uint64_t bytes = 0;
  };
  // Virtual times, in bytes of the whole job: when the lane has used up its share, or will have with one
  // more partition.
  struct Claim {
    double time;
    std::uint32_t lane;
    bool operator>(const Claim& other) const {
      return time != other.time ? time > other.time : lane > other.lane;
    }
  };
  using Claims = std::priority_queue<Claim, std::vector<Claim>, std::greater<>>;

  void queue(std::uint32_t lane);
  void collect_eligible();

  double partition_bytes_;
  std::vector<Lane> lanes_;
  std::uint64_t total_ = 0;
  Claims eligible_;  // by the end of their next partition
  Claims waiting_;   // ahead of their share, by when they no longer are
};

}  // namespace bps

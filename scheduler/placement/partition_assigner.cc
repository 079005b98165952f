#include "scheduler/placement/partition_assigner.h"

#include "proto/base/assert.h"

namespace bps {

PartitionAssigner::PartitionAssigner(std::span<const double> shares, std::uint64_t partition_bytes)
    : partition_bytes_(static_cast<double>(partition_bytes)) {
  set_shares(shares);
}

void PartitionAssigner::set_shares(std::span<const double> shares) {
  BPS_ASSERT(shares.size() >= lanes_.size());
  lanes_.resize(shares.size());
  eligible_ = {};
  waiting_ = {};
  total_ = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    lanes_[i].share = shares[i];
    if (shares[i] <= 0) continue;
    total_ += lanes_[i].bytes;
    queue(static_cast<std::uint32_t>(i));
  }
  BPS_ASSERT(!waiting_.empty());
}

void PartitionAssigner::queue(std::uint32_t lane) {
  waiting_.push({static_cast<double>(lanes_[lane].bytes) / lanes_[lane].share, lane});
}

void PartitionAssigner::collect_eligible() {
  while (!waiting_.empty() && (waiting_.top().time <= static_cast<double>(total_) || eligible_.empty())) {
    const std::uint32_t lane = waiting_.top().lane;
    waiting_.pop();
    eligible_.push({(static_cast<double>(lanes_[lane].bytes) + partition_bytes_) / lanes_[lane].share, lane});
  }
}

LaneIndex PartitionAssigner::assign(std::uint64_t bytes) {
  collect_eligible();
  const std::uint32_t lane = eligible_.top().lane;
  eligible_.pop();
  lanes_[lane].bytes += bytes;
  total_ += bytes;
  queue(lane);
  return LaneIndex{lane};
}

}  // namespace bps

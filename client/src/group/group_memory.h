// Memory of a local group, for the sums and answers of many tensors: taken in large pieces, because each
// costs every peer that is sent some of it a mapping, and given back when all tensors in it have ended.
//
// Owner: GroupPlane. Lives on: client loop. Limits: a piece is 256 KiB at first, then twice as much each time
// up to 16 MiB, or one tensor's. Failure: what the group's allocate() says.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

#include "client/src/group/local_group.h"

namespace bps {

class GroupMemory {
 public:
  explicit GroupMemory(LocalGroup& group) : group_(group) {}

  struct Piece {
    std::shared_ptr<Region> region;
    std::byte* bytes = nullptr;
  };
  Result<Piece> take(std::size_t bytes) {
    const std::size_t wanted = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (region_ == nullptr || used_ + wanted > region_->bytes().size()) {
      while (next_bytes_ < wanted && next_bytes_ < kLargest)
        next_bytes_ *= 2;
      auto region = group_.allocate(std::max(wanted, next_bytes_));
      if (!region) return region.error();
      if (wanted > next_bytes_) return Piece{*region, (*region)->bytes().data()};
      region_ = std::move(region).value();
      used_ = 0;
      next_bytes_ = std::min(2 * next_bytes_, kLargest);
    }
    const Piece piece{region_, region_->bytes().data() + used_};
    used_ += wanted;
    return piece;
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kLargest = std::size_t{16} << 20;

  LocalGroup& group_;
  std::shared_ptr<Region> region_;
  std::size_t used_ = 0;
  std::size_t next_bytes_ = std::size_t{256} << 10;
};

}  // namespace bps

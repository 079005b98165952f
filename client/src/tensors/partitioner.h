// How a tensor is cut: consecutive slices of `partition_bytes`, the last one shorter. Client, scheduler and
// server must agree, so the job's partition_bytes comes from JobStart. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "proto/base/dtype.h"

namespace bps {

class Partitioner {
 public:
  // `partition_bytes` is a multiple of kPartitionBytesMultiple and not 0.
  Partitioner(std::uint64_t elements, DType dtype, std::uint64_t partition_bytes)
      : bytes_(elements * size_of(dtype)), slice_(partition_bytes) {}

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t count() const { return bytes_ / slice_ + (bytes_ % slice_ != 0 ? 1 : 0); }
  std::uint64_t offset(std::uint64_t index) const { return index * slice_; }
  std::uint64_t bytes_of(std::uint64_t index) const { return std::min(slice_, bytes_ - offset(index)); }

 private:
  std::uint64_t bytes_;
  std::uint64_t slice_;
};

}  // namespace bps

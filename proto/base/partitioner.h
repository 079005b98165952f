// How a tensor is cut into partitions of at most `partition_bytes`: consecutive slices of so many bytes, the
// last one shorter. One that has parts is cut so that most partitions are of one part: whole parts are packed
// into a partition while they fit, and only a longer part is cut. So a tensor has at most
// 2 x bytes / partition_bytes + 1 partitions, however many parts it has.
//
// Client, scheduler and server must agree, so the job's partition_bytes comes from JobStart. Pure; copies
// share what is computed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "proto/base/dtype.h"
#include "proto/base/parts.h"

namespace bps {

class Partitioner {
 public:
  // `partition_bytes` is a multiple of kPartitionBytesMultiple and not 0. `parts`: as Parts has it, and they
  // fit.
  Partitioner(std::uint64_t elements, DType dtype, std::uint64_t partition_bytes,
              const std::vector<std::uint64_t>& parts = {});

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t count() const {
    return cut_ != nullptr ? cut_->count : bytes_ / slice_ + (bytes_ % slice_ != 0 ? 1 : 0);
  }
  // Bytes of the largest one; 0: there is none.
  std::uint64_t largest() const { return cut_ != nullptr ? cut_->largest : std::min(slice_, bytes_); }
  // Also of count(): where the last one ends.
  std::uint64_t offset(std::uint64_t index) const {
    return cut_ != nullptr ? cut_->offset(index) : std::min(index * slice_, bytes_);
  }
  std::uint64_t bytes_of(std::uint64_t index) const { return offset(index + 1) - offset(index); }
  // Which partition to send, and to place, as the `place`-th one: beginnings of all parts, then what follows
  // these, and so on. So in a call of parts all owners are busy all the time.
  std::uint64_t in_order(std::uint64_t place) const {
    return cut_ != nullptr ? cut_->in_order(place) : place;
  }

 private:
  // Of parts that are longer than a partition, or unequal: cutting begins anew within the tensor.
  struct Cut {
    std::uint64_t bytes = 0;
    std::uint64_t slice = 0;
    std::uint64_t count = 0;
    std::uint64_t largest = 0;
    // Equal parts: so many bytes, which give so many partitions.
    std::uint64_t stretch = 0;
    std::uint64_t each = 1;
    // Unequal ones: where each partition begins, and the end; and their order.
    std::vector<std::uint64_t> starts;
    std::vector<std::uint64_t> order;

    std::uint64_t offset(std::uint64_t index) const;
    std::uint64_t in_order(std::uint64_t place) const;
  };
  static std::shared_ptr<const Cut> cut_equal(std::uint64_t bytes, std::uint64_t slice, std::uint64_t part);
  static std::shared_ptr<const Cut> cut_unequal(const std::vector<std::uint64_t>& parts, std::uint64_t width,
                                                std::uint64_t slice);

  std::uint64_t bytes_;
  std::uint64_t slice_;
  std::shared_ptr<const Cut> cut_;  // null: consecutive slices
};

}  // namespace bps

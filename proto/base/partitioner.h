// How a tensor is cut into partitions of at most `partition_bytes`: consecutive slices of so many bytes, the
// last one shorter. One that has parts is cut so that most partitions are of one part: whole parts are packed
// into a partition while they fit, and only a longer part is cut. So a tensor has at most
// 2 x bytes / partition_bytes + 1 partitions, however many parts it has.
//
// Client, scheduler and server must agree, so the job's partition_bytes comes from JobStart. Pure; copies
// share what is computed.
#pragma once

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
  std::uint64_t count() const { return count_; }
  std::uint64_t largest() const { return largest_; }  // bytes of the largest one; 0: there is none
  // Also of count(): where the last one ends.
  std::uint64_t offset(std::uint64_t index) const {
    if (starts_ != nullptr) return (*starts_)[index];
    if (index < each_) return index * slice_;  // without parts all
    if (index == count_) return bytes_;
    return index / each_ * stretch_ + index % each_ * slice_;
  }
  std::uint64_t bytes_of(std::uint64_t index) const { return offset(index + 1) - offset(index); }
  // Which partition to send, and to place, as the `place`-th one: beginnings of all parts, then what follows
  // these, and so on. So in a call of parts all owners are busy all the time.
  std::uint64_t in_order(std::uint64_t place) const {
    if (order_ != nullptr) return (*order_)[place];
    const std::uint64_t parts = count_ / each_;
    return place % parts * each_ + place / parts;
  }

 private:
  void cut_unequal(const std::vector<std::uint64_t>& parts, std::uint64_t width);

  std::uint64_t bytes_;
  std::uint64_t slice_;
  // Cutting begins anew after so many bytes, which give so many partitions.
  std::uint64_t stretch_;
  std::uint64_t each_ = 1;
  std::uint64_t count_ = 0;
  std::uint64_t largest_ = 0;
  std::shared_ptr<const std::vector<std::uint64_t>> starts_;  // of unequal parts, and the end
  std::shared_ptr<const std::vector<std::uint64_t>> order_;   // likewise, see in_order()
};

}  // namespace bps

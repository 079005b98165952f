// The memory that a tensor's answers come into and are kept in: the library's own, or that of the group whose
// ranks sum on their host first (decision 0019).
//
// A partition has one place, in an asynchronous tensor two, of which the next answer goes into the one that
// does not have the last. A group has memory for the partitions that are this rank's, for sums and for
// answers; where this rank is alone in it, the answers of all rounds lie there.
//
// Pure. Owner: TensorState. Lives on: client loop. Limits: library memory is as large as the tensor, or twice
// that if it is async, and allocated when it is first needed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/src/tensors/partition.h"
#include "proto/base/ids.h"
#include "proto/base/memory/region.h"
#include "proto/base/partitioner.h"

namespace bps {

class AnswerMemory {
 public:
  // Memory of the group for the partitions that are this rank's.
  struct Share {
    std::uint32_t size = 1;
    std::uint32_t rank = 0;
    std::span<const Rank> ranks = {};  // growing; they outlive the tensor's rounds
    std::shared_ptr<Region> region = nullptr;
    std::byte* sums = nullptr;
    std::byte* answers = nullptr;
    bool has(Rank root) const { return std::binary_search(ranks.begin(), ranks.end(), root); }
  };
  static std::uint64_t share_bytes(const Partitioner& partitioner, const std::vector<Partition>& partitions,
                                   std::uint32_t size, std::uint32_t rank);

  // `partitioner` outlives it. `bytes`: of the tensor.
  AnswerMemory(const Partitioner& partitioner, std::uint64_t bytes, bool is_async)
      : partitioner_(partitioner), bytes_(bytes), is_async_(is_async) {}
  AnswerMemory(const AnswerMemory&) = delete;
  AnswerMemory& operator=(const AnswerMemory&) = delete;

  // At most once. What is kept is in the share's memory from now on; a connection may still read it where it
  // was, until drop_former().
  void join(Share share);
  void drop_former() { former_library_.reset(); }
  bool has_joined() const { return has_joined_; }
  const Share& share() const { return share_; }
  bool is_alone_in_group() const { return has_joined_ && share_.size == 1; }

  // Allocates what is needed. False: there is no memory.
  bool make_library();
  bool make_home(const Partition& partition) { return is_owner(partition) || make_library(); }
  // After that: where the last answer is kept that was whole; where the next one goes to.
  std::byte* home(const Partition& partition) const { return place(partition, partition.upper); }
  std::byte* next_home(const Partition& partition) const { return place(partition, !partition.upper); }
  // In library memory, of whatever partition.
  std::byte* in_library(const Partition& partition) const {
    return library_.get() + partitioner_.offset(partition.index);
  }
  // In the group's, of this rank's partitions.
  std::byte* sum(const Partition& partition) const { return share_.sums + share_offset(partition); }

  // What home() and in_library() lie in.
  std::shared_ptr<const std::byte[]> hold() const;

 private:
  std::byte* place(const Partition& partition, bool upper) const;
  std::uint64_t share_offset(const Partition& partition) const {
    return partition.index / share_.size * partitioner_.largest();
  }

  const Partitioner& partitioner_;
  const std::uint64_t bytes_;
  const bool is_async_;
  std::shared_ptr<std::byte[]> library_;  // null until it is needed
  std::shared_ptr<std::byte[]> former_library_;
  Share share_;
  bool has_joined_ = false;
};

}  // namespace bps

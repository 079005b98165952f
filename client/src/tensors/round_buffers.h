// What a rank gives and takes of each partition in a round, and where it lies in the program's buffers.
//
// The tensor, or as many of its first elements as the call has, is input, output or both, but for the calls
// of parts: the output of a reduce_scatter and the input of an all_gather are only this rank's part. Of
// partitions behind the end of a call nothing is given or taken.
//
// Pure. Owner: TensorState. Lives on: client loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "client/src/tensors/partition.h"
#include "client/src/tensors/request.h"
#include "proto/base/partitioner.h"

namespace bps {

class RoundBuffers {
 public:
  // All outlive it.
  RoundBuffers(const Partitioner& partitioner, const TensorShape& shape, Rank self, const Request& request)
      : partitioner_(partitioner), shape_(shape), self_(self), request_(request) {}

  // The call, as it is in the partition.
  RoundCall call_in(const Partition& partition) const {
    return request_.call.in_partition(partition.only_owner, shape_.dtype);
  }
  // The answer has the partition's bytes; else none.
  bool takes(const Partition& partition) const {
    const RoundCall call = call_in(partition);
    return call.takes(call.root == self_);
  }

  // The answer lacks what this rank gives: it adds that.
  bool adds_own(const Partition& partition) const {
    return call_in(partition).owner_adds && own(partition).bytes > 0;
  }
  // Puts into `to`, which is the output or apart from all others, what the program wants of the answer whose
  // wanted bytes are at `answer`, which may be `to`. `weight`: that of the answer.
  void add_own(const Partition& partition, std::byte* to, const std::byte* answer,
               std::uint32_t weight) const;

  // What this rank gives; null: nothing.
  const std::byte* input(const Partition& partition) const {
    if (partition.bytes == 0) return nullptr;
    if (request_.call.kind == RoundKind::all_gather) return own_part(partition);
    const std::byte* const source = request_.source().bytes.data();
    const RoundCall call = call_in(partition);
    const bool gives = call.gives(call.root == self_) && source != nullptr;
    return gives ? source + partitioner_.offset(partition.index) : nullptr;
  }
  std::size_t input_bytes(const Partition& partition) const {
    if (input(partition) == nullptr) return 0;
    return request_.call.kind == RoundKind::all_gather ? own(partition).bytes : partition.bytes;
  }

  // Of an answer, the bytes that the program wants.
  struct Wanted {
    std::size_t begin = 0;
    std::size_t bytes = 0;
  };
  Wanted wanted(const Partition& partition) const {
    if (request_.call.kind == RoundKind::reduce_scatter) return own(partition);
    return {0, partition.bytes};
  }
  // Where they belong; null: nowhere.
  std::byte* output(const Partition& partition) const {
    if (partition.bytes == 0 || request_.view || !takes(partition)) return nullptr;
    if (request_.call.kind == RoundKind::reduce_scatter) return scattered_part(partition);
    return request_.out.bytes.data() + partitioner_.offset(partition.index);
  }
  // They belong where the contribution lies, or a part of it, or what is to be added.
  bool in_place(const Partition& partition) const;

  // This rank gives what belongs into its output, and takes no answer with it.
  bool has_own(const Partition& partition) const {
    return request_.call.kind == RoundKind::all_gather && !takes(partition) && input(partition) != nullptr;
  }
  // Where that belongs.
  std::byte* own_output(const Partition& partition) const {
    return request_.out.bytes.data() + partitioner_.offset(partition.index);
  }

 private:
  // In a reduce_scatter: this rank's part of what it is given.
  const std::byte* own_input(const Partition& partition) const;
  // Where this rank's part of the partition is given, or goes to; null: it has none there.
  const std::byte* own_part(const Partition& partition) const;
  std::byte* scattered_part(const Partition& partition) const;
  // This rank's part in the partition.
  Wanted own(const Partition& partition) const;
  // From the beginning of this rank's part to its bytes in the partition, if it has some.
  std::size_t into_own(const Partition& partition) const;
  std::uint64_t own_begin() const { return shape_.parts.begin(self_) * size_of(shape_.dtype); }

  const Partitioner& partitioner_;
  const TensorShape& shape_;
  const Rank self_;
  const Request& request_;
};

}  // namespace bps

#include "client/src/tensors/round_buffers.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>

#include "proto/reduce/reduce.h"

namespace bps {

RoundBuffers::Wanted RoundBuffers::own(const Partition& partition) const {
  const std::uint64_t begin = partitioner_.offset(partition.index);
  const std::uint64_t end = begin + partition.bytes;
  const std::uint64_t from = std::max(begin, own_begin());
  const std::uint64_t to = std::min(end, own_begin() + shape_.parts.elements(self_) * size_of(shape_.dtype));
  return from < to ? Wanted{from - begin, to - from} : Wanted{};
}

std::size_t RoundBuffers::into_own(const Partition& partition) const {
  return partitioner_.offset(partition.index) + own(partition).begin - own_begin();
}

const std::byte* RoundBuffers::own_part(const Partition& partition) const {
  return own(partition).bytes == 0 ? nullptr : request_.in.bytes.data() + into_own(partition);
}

std::byte* RoundBuffers::scattered_part(const Partition& partition) const {
  return own(partition).bytes == 0 ? nullptr : request_.out.bytes.data() + into_own(partition);
}

bool RoundBuffers::in_place(const Partition& partition) const {
  const std::byte* const to = output(partition);
  if (to == nullptr) return false;
  if (adds_own(partition)) return to == own_input(partition);
  const std::byte* const from = input(partition);
  if (from == nullptr) return false;
  const std::less<> before;
  return before(from, to + wanted(partition).bytes) && before(to, from + input_bytes(partition));
}

const std::byte* RoundBuffers::own_input(const Partition& partition) const {
  return request_.in.bytes.data() + partitioner_.offset(partition.index) + own(partition).begin;
}

// With the arithmetic of the servers. The weight is this rank's alone if no other has given anything.
void RoundBuffers::add_own(const Partition& partition, std::byte* to, const std::byte* answer,
                           std::uint32_t weight) const {
  const std::byte* const own_bytes = own_input(partition);
  const std::size_t bytes = own(partition).bytes;
  if (weight > 1) {
    reduce::finish(shape_.dtype, request_.call.operation, to, nullptr, std::span(&own_bytes, 1),
                   bytes / size_of(shape_.dtype), weight, answer);
  } else if (to != own_bytes) {
    std::memcpy(to, own_bytes, bytes);
  }
}

}  // namespace bps

#include "client/src/tensors/round_buffers.h"

#include <algorithm>
#include <functional>

namespace bps {

RoundCall RoundBuffers::call_in(const Partition& partition) const {
  if (!request_.call.is_of_parts()) return request_.call;
  const std::size_t width = size_of(shape_.dtype);
  return request_.call.in_partition(
      shape_.parts.only_owner(partitioner_.offset(partition.index) / width, partition.bytes / width));
}

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

const std::byte* RoundBuffers::input(const Partition& partition) const {
  if (request_.call.kind == RoundKind::all_gather) {
    return own(partition).bytes == 0 ? nullptr : request_.in.bytes.data() + into_own(partition);
  }
  const std::byte* const source = request_.source().bytes.data();
  const bool gives = request_.call.gives(request_.call.root == self_) && source != nullptr;
  return gives ? source + partitioner_.offset(partition.index) : nullptr;
}

std::size_t RoundBuffers::input_bytes(const Partition& partition) const {
  if (input(partition) == nullptr) return 0;
  return request_.call.kind == RoundKind::all_gather ? own(partition).bytes : partition.bytes;
}

RoundBuffers::Wanted RoundBuffers::wanted(const Partition& partition) const {
  if (request_.call.kind == RoundKind::reduce_scatter) return own(partition);
  return {0, partition.bytes};
}

std::byte* RoundBuffers::output(const Partition& partition) const {
  if (request_.view || !takes(partition)) return nullptr;
  if (request_.call.kind != RoundKind::reduce_scatter)
    return request_.out.bytes.data() + partitioner_.offset(partition.index);
  return own(partition).bytes == 0 ? nullptr : request_.out.bytes.data() + into_own(partition);
}

bool RoundBuffers::in_place(const Partition& partition) const {
  const std::byte* const from = input(partition);
  const std::byte* const to = output(partition);
  if (from == nullptr || to == nullptr) return false;
  const std::less<> before;
  return before(from, to + wanted(partition).bytes) && before(to, from + input_bytes(partition));
}

}  // namespace bps

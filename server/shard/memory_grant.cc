#include "server/shard/memory_grant.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "proto/base/config/units.h"

namespace bps {
namespace {

std::uint64_t mapped(const BufferPool& pool) { return pool.bytes_in_use() + pool.bytes_held(); }

// What it has more than before, at most what was taken of it.
void trim_back(BufferPool& pool, std::uint64_t before, std::uint64_t taken) {
  const std::uint64_t now = mapped(pool);
  const std::uint64_t held = pool.bytes_held();
  pool.trim(held - std::min({held, taken, now - std::min(now, before)}));
}

// Of a step, for each piece however small: there may be a million.
constexpr std::uint64_t kBytesForAPiece = 2048;

}  // namespace

MemoryGrant::MemoryGrant(const Pools& pools, bool pins, const DeclareSlices& declare, const Shared& shared)
    : pools_(pools),
      slots_before_(mapped(pools.slots)),
      arrivals_before_(mapped(pools.arrivals)),
      accumulators_before_(mapped(pools.accumulators)),
      pins_(pins),
      declare_(declare) {
  for (BufferPool* const pool : {&pools_.slots, &pools_.arrivals, &pools_.accumulators})
    pool->look_again();
  // In class sizes, like the ledger: what is larger than before and of the same class has room already.
  std::size_t largest = 0;
  std::size_t widest = 0;
  std::size_t largest_slot = 0;
  for (const TensorSlices& tensor : declare_.tensors) {
    for (const PartitionSlice& slice : tensor.partitions) {
      const std::size_t raw = slice.elements * size_of(tensor.dtype);
      const std::size_t wide = accumulator_bytes(tensor.dtype, slice.elements, tensor.mode);
      largest = std::max(largest, BufferPool::class_bytes(std::max<std::size_t>(raw, 1)));
      widest = std::max(widest, wide > 0 ? BufferPool::class_bytes(wide) : 0);
      const std::size_t slot = pooled_slot_bytes(tensor.dtype, slice.elements, tensor.mode);
      largest_slot = std::max(largest_slot, slot > 0 ? BufferPool::class_bytes(slot) : 0);
      needed_ += reserved_bytes(tensor.dtype, slice.elements, tensor.mode).own;
    }
  }
  if (largest > shared.lane_bytes) {
    lanes_.bytes = largest;
    lanes_left_ = shared.lanes;
    needed_ += shared.lanes * largest;
  }
  if (widest > shared.accumulator_bytes) accumulators_.bytes = widest;
  if (largest_slot > shared.slot_bytes) slot_.bytes = largest_slot;
  needed_ += accumulators_.bytes + slot_.bytes;
}

MemoryGrant::State MemoryGrant::step() {
  for (std::uint64_t work = 0; work < kStepBytes; work += kBytesForAPiece) {
    while (tensor_ < declare_.tensors.size() && partition_ == declare_.tensors[tensor_].partitions.size()) {
      ++tensor_;
      partition_ = 0;
    }
    const bool has_partition = tensor_ < declare_.tensors.size();
    const bool has_reserve = accumulators_.bytes + slot_.bytes > 0;
    if (lanes_left_ == 0 && !has_reserve && !has_partition) return State::complete;
    const std::uint64_t before = taken_;
    if (!take_next()) return refuse();
    work += taken_ - before;
  }
  return State::more;
}

bool MemoryGrant::take_next() {
  if (lanes_left_ > 0) return take_lane_buffer();
  if (accumulators_.bytes > 0) return take_reserve(pools_.accumulators, accumulators_);
  return slot_.bytes > 0 ? take_reserve(pools_.slots, slot_) : take_partition();
}

bool MemoryGrant::take_lane_buffer() {
  BufferPool::Buffer buffer = pools_.arrivals.allocate(lanes_.bytes);
  if (!buffer) return false;
  lanes_.free.push_back(std::move(buffer));
  --lanes_left_;
  taken_ += lanes_.bytes;
  return true;
}

bool MemoryGrant::take_reserve(BufferPool& pool, Reserve& reserve) {
  const std::size_t bytes = std::exchange(reserve.bytes, 0);
  reserve.buffer = pool.allocate(bytes);
  taken_ += reserve.buffer ? bytes : 0;
  return static_cast<bool>(reserve.buffer);
}

bool MemoryGrant::take_partition() {
  const TensorSlices& tensor = declare_.tensors[tensor_];
  const std::uint64_t elements = tensor.partitions[partition_].elements;
  Part part;
  if (pins_) part.reserved = reserve_slots(pools_.slots, tensor.dtype, elements, tensor.mode);
  auto own = take_memory(pools_.slots, tensor.dtype, elements, tensor.mode);
  if (!own) return false;
  part.own = std::move(*own);
  parts_.push_back(std::move(part));
  ++partition_;
  taken_ += reserved_bytes(tensor.dtype, elements, tensor.mode).own;
  return true;
}

MemoryGrant::State MemoryGrant::refuse() {
  parts_.clear();
  lanes_.free.clear();
  accumulators_.buffer.reset();
  slot_.buffer.reset();
  trim_back(pools_.slots, slots_before_, taken_);
  trim_back(pools_.arrivals, arrivals_before_, taken_);
  trim_back(pools_.accumulators, accumulators_before_, taken_);
  return State::refused;
}

Error MemoryGrant::error() const {
  return make_error(ErrorCode::out_of_memory,
                    fmt::format("the system gave {} of the {} that they need from the start",
                                rounded(ByteSize{taken_}), rounded(ByteSize{needed_})));
}

}  // namespace bps

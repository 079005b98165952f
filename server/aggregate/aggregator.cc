#include "server/aggregate/aggregator.h"

#include <utility>

#include "proto/base/assert.h"
#include "server/aggregate/async_aggregator.h"
#include "server/aggregate/sync_aggregator.h"

namespace bps {

namespace {

std::uint64_t slot_bytes(DType dtype, std::uint64_t elements, Mode mode) {
  return elements * (mode == Mode::async ? reduce::accumulator_size(dtype) : size_of(dtype));
}

}  // namespace

ReservedBytes reserved_bytes(DType dtype, std::uint64_t elements, Mode mode) {
  if (mode == Mode::slot) return {};
  const auto held = [](std::uint64_t bytes) {
    return BufferPool::class_bytes(std::max<std::uint64_t>(bytes, 1));
  };
  const std::uint64_t slot = held(slot_bytes(dtype, elements, mode));
  if (mode == Mode::sync) return {slot, slot};
  return {slot + held(elements * size_of(dtype)), 0};
}

std::uint64_t accumulator_bytes(DType dtype, std::uint64_t elements, Mode mode) {
  const std::uint64_t wide = reduce::accumulator_size(dtype);
  return mode != Mode::async && wide > size_of(dtype) ? elements * wide : 0;
}

std::uint64_t pooled_slot_bytes(DType dtype, std::uint64_t elements, Mode mode) {
  return mode == Mode::slot ? std::max<std::uint64_t>(slot_bytes(dtype, elements, mode), 1) : 0;
}

std::optional<PartitionMemory> take_memory(BufferPool& slots, DType dtype, std::uint64_t elements,
                                           Mode mode) {
  const auto take = [&](std::uint64_t bytes) { return slots.allocate(std::max<std::size_t>(bytes, 1)); };
  PartitionMemory memory;
  if (mode == Mode::slot) return memory;
  memory.slot = take(slot_bytes(dtype, elements, mode));
  if (mode == Mode::async) memory.snapshot = take(elements * size_of(dtype));
  if (!memory.slot || (mode == Mode::async && !memory.snapshot)) return std::nullopt;
  return memory;
}

SlotReservations reserve_slots(BufferPool& slots, DType dtype, std::uint64_t elements, Mode mode) {
  const auto reserve = [&](std::uint64_t bytes, std::size_t count) {
    return slots.reserve(std::max<std::size_t>(bytes, 1), count);
  };
  SlotReservations reserved;
  if (mode == Mode::slot) return reserved;
  reserved[0] = reserve(slot_bytes(dtype, elements, mode), mode == Mode::sync ? 2 : 1);
  if (mode == Mode::async) reserved[1] = reserve(elements * size_of(dtype), 1);
  return reserved;
}

std::unique_ptr<Aggregator> Aggregator::create(PartitionShape shape,
                                               std::span<const Contributor> contributors,
                                               AggregatorMemory memory, PartitionMemory own) {
  if (shape.mode == Mode::async) {
    return std::make_unique<AsyncAggregator>(std::move(shape), contributors, memory, std::move(own));
  }
  return std::make_unique<SyncAggregator>(std::move(shape), contributors, memory, std::move(own));
}

void Aggregator::emit(Actions& actions, Action::Kind kind, std::uint32_t contributor, Round round,
                      Error error) {
  Action& action = actions.emplace_back();
  action.kind = kind;
  action.contributor = contributor;
  action.round = round;
  action.error = std::move(error);
}

}  // namespace bps

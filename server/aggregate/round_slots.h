// The two slots of a synchronous partition: round t has slot t mod 2.
//
// The open round is summed in one of them, while the aggregate of the round before stays unchanged in the
// other one. There is always memory for one of them; the second takes more from the pool when it needs some,
// and one of the two buffers goes back as soon as a slot is released. So one slot has memory whenever the
// other one has none. A partition of a tensor in mode slot owns none: both slots take theirs from the job's
// pool (RoundPool), have to wait for it, perhaps, and give it back. A pin says that a connection reads the
// slot's aggregate, or writes a contribution into it: until it is given back the slot's memory stays, and
// nobody else may write into it, but for those that write other bytes of the same copy.
//
// Owner: a SyncAggregator, which says which slot is not needed any more. Lives on: shard loop.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "proto/base/assert.h"
#include "proto/base/ids.h"
#include "proto/base/memory/buffer_pool.h"
#include "server/aggregate/round_pool.h"

namespace bps {

class RoundSlots {
 public:
  static constexpr std::uint32_t kCount = 2;

  // The pool outlives it. `own`: of as many bytes. 0 bytes still take a buffer, so that every payload has a
  // place.
  RoundSlots(BufferPool& pool, std::size_t bytes, BufferPool::Buffer own)
      : pool_(pool), bytes_(std::max<std::size_t>(bytes, 1)), idle_(std::move(own)) {
    BPS_ASSERT(idle_.size() == bytes_);
  }
  // Of a partition that owns none.
  RoundSlots(RoundPool::Reserve& reserve, RoundPool::Owner& owner, std::size_t bytes)
      : pool_(reserve.pool().memory()),
        bytes_(std::max<std::size_t>(bytes, 1)),
        claims_(std::make_unique<Claims>(reserve, owner, bytes_)) {}

  // From the job's pool.
  bool is_pooled() const { return claims_ != nullptr; }
  // This round has it from there, or waits for it: not one before it.
  bool is_claimed(Round round) const { return of(round).claimed_for == round; }

  static std::uint32_t number_of(Round round) { return static_cast<std::uint32_t>(round.value % kCount); }

  // Memory for the slot of the round; null: there is none for a second one now, or it waits for some.
  // `announced`: see RoundPool.
  std::byte* take(Round round, bool announced) {
    Slot& slot = of(round);
    if (is_pooled()) {
      slot.claimed_for = round;
      return claim(round).take(announced) ? claim(round).data() : nullptr;
    }
    if (!slot.buffer) slot.buffer = idle_ ? std::move(idle_) : pool_.allocate(bytes_);
    return slot.buffer.data();
  }
  // What was taken; null: nothing.
  std::byte* memory(Round round) const { return buffer(round).data(); }
  bool has_memory(Round round) const { return static_cast<bool>(buffer(round)); }
  const BufferPool::Buffer& buffer(Round round) const {
    return is_pooled() ? claim(round).buffer() : of(round).buffer;
  }
  // Not while it is pinned. Waits no more.
  void release(Round round) {
    if (is_pinned(round)) return;
    if (is_pooled()) return claim(round).give_back();
    Slot& slot = of(round);
    if (!slot.buffer) return;
    if (has_memory(round.next())) {
      slot.buffer.reset();
    } else {
      idle_ = std::move(slot.buffer);
    }
  }

  bool is_pinned(Round round) const { return of(round).pins > 0; }
  // By others than those that write what the round is to have.
  bool is_taken(Round round) const { return of(round).pins > of(round).writers; }
  void pin(Round round) { ++of(round).pins; }
  void unpin(Round round) { unpin(number_of(round)); }
  // For one that writes. When the open round is over, its pin is like any other.
  void pin_to_write(Round round) {
    pin(round);
    ++of(round).writers;
  }
  void unpin_written(Round round) {
    Slot& slot = of(round);
    if (slot.writers > 0) --slot.writers;
    unpin(round);
  }
  void end_writing() {
    for (Slot& slot : slots_)
      slot.writers = 0;
  }
  // True: that was the last one.
  bool unpin(std::uint32_t number) {
    BPS_ASSERT(number < kCount && slots_[number].pins > 0);
    return --slots_[number].pins == 0;
  }

  // How long the round's aggregate is, or will be. It begins where its memory does.
  void set_aggregate(Round round, std::size_t bytes) { of(round).aggregate = bytes; }
  std::span<const std::byte> aggregate(Round round) const { return {memory(round), of(round).aggregate}; }

 private:
  struct Slot {
    BufferPool::Buffer buffer;  // if the partition has its own
    std::uint32_t pins = 0;
    std::uint32_t writers = 0;  // of these
    std::size_t aggregate = 0;
    Round claimed_for;  // what is from a pool
  };

  struct Claims {
    Claims(RoundPool::Reserve& reserve, RoundPool::Owner& owner, std::size_t bytes)
        : slots{RoundPool::Claim(reserve, owner, bytes), RoundPool::Claim(reserve, owner, bytes)} {}
    std::array<RoundPool::Claim, kCount> slots;
  };

  RoundPool::Claim& claim(Round round) const { return claims_->slots[number_of(round)]; }
  Slot& of(Round round) { return slots_[number_of(round)]; }
  const Slot& of(Round round) const { return slots_[number_of(round)]; }

  BufferPool& pool_;
  const std::size_t bytes_;
  BufferPool::Buffer idle_;  // while no slot has memory
  std::array<Slot, kCount> slots_;
  std::unique_ptr<Claims> claims_;
};

}  // namespace bps

// What is whole becomes a sum.
#include <algorithm>
#include <cstring>
#include <utility>

#include "proto/base/assert.h"
#include "server/aggregate/sync_aggregator.h"

namespace bps {
namespace {

// Inputs of one pass.
using Inputs = std::array<const std::byte*, 16>;

// Ranks that are asked before their turn: enough to hide a round trip, few enough to be in cache still when
// they are added.
constexpr std::uint32_t kAskedAhead = 16;

}  // namespace

void SyncAggregator::land_in_slot(std::uint32_t contributor) {
  std::byte* const slot = slot_of(open_).memory.data();
  states_[contributor].phase = Phase::added;
  added_ = operation_ == Operation::broadcast ? added_ + 1 : contributor + 1;
  aggregate_[open_.value % 2] = slot;
  if (operation_ == Operation::broadcast) return;
  first_ = slot + reduce::raw_offset(shape_.dtype, shape_.elements);
  if (!all_added()) return;
  finish({});
  added_ = static_cast<std::uint32_t>(states_.size());  // those behind it are absent
}

void SyncAggregator::finish(std::span<const std::byte* const> inputs) {
  aggregate_[open_.value % 2] =
      reduce::finish(shape_.dtype, operation_, slot_of(open_).memory.data(), inputs, shape_.elements,
                     total_weight_, std::exchange(first_, nullptr));
}

void SyncAggregator::advance(Actions& actions) {
  if (!begun_) return;
  if (operation_ == Operation::broadcast) {
    land_waiting_root(actions);
  } else {
    while (add_ready(actions)) {}
  }
  if (!begun_) return;  // failed
  if (all_added()) {
    complete(actions);
  } else {
    recall(actions);
  }
}

// It was lent, or had to wait because the slot was still being read.
void SyncAggregator::land_waiting_root(Actions& actions) {
  Slot& slot = slot_of(open_);
  if (slot.pins > 0) return;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    if (!is_root(i)) continue;
    if (states_[i].phase != Phase::whole) return;
    if (is_withdrawn(i)) return forget(i);
    if (!slot.memory) slot.memory = allocate(memory_.slots, shape_.slot_bytes());
    if (!slot.memory) return fail_round(memory_error(open_), actions);
    std::memcpy(slot.memory.data(), input(i), shape_.raw_bytes());
    if (is_withdrawn(i)) return forget(i);
    states_[i].drop();
    return land_in_slot(i);
  }
}

void SyncAggregator::count_ready() {
  for (; ready_ < states_.size(); ++ready_) {
    State& state = states_[ready_];
    if (state.phase == Phase::absent) continue;
    if (state.phase != Phase::whole && state.phase != Phase::added) return;
    const LentPayload* const lent = state.lent();
    if (state.phase == Phase::whole && (lent == nullptr || lent->scarce())) hurry_ = true;
  }
}

const std::byte* SyncAggregator::input(std::uint32_t contributor) {
  State& state = states_[contributor];
  if (const LentPayload* lent = state.lent()) return lent->bytes().data();
  if (const BufferPool::Buffer* buffer = state.buffer()) return buffer->data();
  BPS_ASSERT(lane_input_ != nullptr);
  return lane_input_;
}

bool SyncAggregator::is_withdrawn(std::uint32_t contributor) {
  const LentPayload* const lent = states_[contributor].lent();
  return lent != nullptr && !lent->intact();
}

void SyncAggregator::forget(std::uint32_t contributor) {
  State& state = states_[contributor];
  state.drop();
  state.phase = Phase::none;
  ready_ = std::min(ready_, contributor);
}

bool SyncAggregator::add_ready(Actions& actions) {
  count_ready();
  Slot& slot = slot_of(open_);
  const bool all = ready_ == states_.size();
  // Behind the last one that was added, those that are absent still count as the end of the sum.
  const bool any = all ? added_ < ready_ : present_from(added_) < ready_;
  if (!any || slot.pins > 0 || !(hurry_ || all) || absent_ == states_.size()) return false;
  for (std::uint32_t i = added_; i < ready_; ++i) {
    if (!is_withdrawn(i)) continue;
    forget(i);
    return true;
  }
  if (!slot.memory) slot.memory = allocate(memory_.slots, shape_.slot_bytes());
  if (!slot.memory) {
    fail_round(memory_error(open_), actions);
    return false;
  }
  const std::uint32_t first = added_;
  const std::uint32_t end = ready_;
  combine(first, end);
  hurry_ = false;
  bool spoiled = false;
  for (std::uint32_t i = first; i < end; ++i) {
    if (!is_withdrawn(i)) continue;
    forget(i);
    spoiled = true;
  }
  if (spoiled) {
    start_over(first, actions);
    return begun_;
  }
  for (std::uint32_t i = first; i < end; ++i) {
    if (is_absent(i)) continue;
    states_[i].phase = Phase::added;
    states_[i].drop();
  }
  added_ = end;
  return false;
}

void SyncAggregator::combine(std::uint32_t first, std::uint32_t end) {
  std::byte* const slot = slot_of(open_).memory.data();
  if (const std::uint32_t lowest = present_from(0); first <= lowest) {
    first_ = input(lowest);
    first = lowest + 1;
  }
  Inputs inputs;
  do {
    std::size_t n = 0;
    for (; first < end && n < inputs.size(); ++first) {
      if (!is_absent(first)) inputs[n++] = input(first);
    }
    if (first == states_.size()) {
      finish({inputs.data(), n});
    } else if (n > 0 || first_ != nullptr) {
      reduce::accumulate(shape_.dtype, operation_, slot, {inputs.data(), n}, shape_.elements,
                         std::exchange(first_, nullptr));
    }
  } while (first < end);
}

// What was added before `first` is lost with the slot; the inputs of the last pass are still there, but for
// those that were withdrawn.
void SyncAggregator::start_over(std::uint32_t first, Actions& actions) {
  added_ = 0;
  ready_ = 0;
  first_ = nullptr;
  for (std::uint32_t i = 0; i < first; ++i) {
    State& state = states_[i];
    if (state.dead) {
      if (!is_absent(i)) make_absent(i);
      continue;
    }
    if (state.left) return fail_round(left_error(i), actions);
    state.phase = state.awaiting ? Phase::later : Phase::none;
    if (state.awaiting) emit(actions, Action::Kind::later, i, open_);
  }
}

void SyncAggregator::recall(Actions& actions) {
  if (!begun_) return;
  const bool slot_is_free = slot_of(open_).pins == 0;
  if (operation_ == Operation::broadcast || ready_ <= present_from(0)) {
    // Only what belongs into the slot can be waited for; it needs no budget once the slot is free.
    if (!slot_is_free) return;
    const auto ask = [&](std::uint32_t contributor) {
      State& state = states_[contributor];
      if (state.phase != Phase::later || state.arrival != Arrival::none) return;
      state.phase = Phase::asked;
      emit(actions, Action::Kind::again, contributor, open_);
    };
    if (operation_ != Operation::broadcast) {
      if (const std::uint32_t lowest = present_from(0); lowest < states_.size()) ask(lowest);
      return;
    }
    for (std::uint32_t i = 0; i < states_.size(); ++i) {
      if (is_root(i)) ask(i);
    }
    return;
  }
  const auto end = static_cast<std::uint32_t>(std::min<std::size_t>(states_.size(), ready_ + kAskedAhead));
  for (std::uint32_t i = ready_; i < end; ++i) {
    State& state = states_[i];
    if (state.phase != Phase::later || state.arrival != Arrival::none) continue;
    // The next one goes through its lane's buffer. Those close behind it are asked as far as there is room,
    // so that they need not come one round trip after the other.
    if (i > ready_ || !slot_is_free) {
      state.held = allocate(memory_.budget, shape_.raw_bytes());
      if (!*state.buffer()) return state.drop();
    }
    state.phase = Phase::asked;
    emit(actions, Action::Kind::again, i, open_);
  }
}

}  // namespace bps

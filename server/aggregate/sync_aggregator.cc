// What arrives, and what comes of it in the end. What happens between is in sync_aggregator_sum.cc, what
// happens before, where the partition was another server's, in sync_aggregator_fence.cc.
#include "server/aggregate/sync_aggregator.h"

#include <algorithm>
#include <cstring>

#include "proto/base/assert.h"

namespace bps {
SyncAggregator::SyncAggregator(PartitionShape shape, std::span<const Contributor> contributors,
                               AggregatorMemory memory)
    : Aggregator(std::move(shape), contributors, memory),
      states_(contributors.size()),
      unstored_(static_cast<std::uint32_t>(contributors.size())) {
  for (const Contributor& contributor : contributors) {
    total_weight_ += contributor.weight;
  }
  live_weight_ = total_weight_;
  if (!shape_.moved) return;
  fence_ = std::make_unique<Fence>();
  fence_->reports.resize(contributors.size());
  fence_->missing = static_cast<std::uint32_t>(contributors.size());
}

// ---- arrivals ----

Destination SyncAggregator::begin(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes,
                                  Actions& actions) {
  if (fence_ != nullptr) {
    BPS_ASSERT(states_[contributor].arrival == Arrival::none);
    states_[contributor].round = header.round;
    states_[contributor].arrival = header.announced ? Arrival::fenced_announced : Arrival::fenced;
    return Destination{};
  }
  if (!wants(contributor, header, bytes, actions)) return Destination{};
  State& state = states_[contributor];
  if (header.announced) {
    state.arrival = Arrival::announced;
    return Destination{};
  }
  const Destination destination = place(contributor, bytes);
  if (state.arrival == Arrival::slot && destination.memory == nullptr) {
    fail_round(memory_error(open_), actions);
    state.arrival = Arrival::retained;
  }
  return destination;
}

bool SyncAggregator::lend(std::uint32_t contributor, const PushPull& header, LentPayload& payload,
                          Actions& actions) {
  if (fence_ != nullptr) return false;
  // A scarce one cannot wait here.
  if (payload.scarce() && !is_turn(contributor, header)) return false;
  if (!wants(contributor, header, payload.bytes().size(), actions)) {
    payload.reset();
    end(contributor, nullptr, actions);
    return true;
  }
  State& state = states_[contributor];
  state.phase = Phase::whole;
  state.held = std::move(payload);
  advance(actions);
  // Left over from a sum that was spoiled.
  if (LentPayload* lent = state.lent(); lent != nullptr && lent->scarce()) {
    const LentPayload kept = std::move(*lent);
    state.drop();
    ready_ = std::min(ready_, contributor);
    if (kept.intact()) {
      set_aside(contributor, kept.bytes().data(), actions);
      if (!kept.intact()) forget(contributor);
    } else {
      state.phase = Phase::none;
    }
  }
  return true;
}

bool SyncAggregator::wants(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes,
                           Actions& actions) {
  State& state = states_[contributor];
  BPS_ASSERT(state.arrival == Arrival::none);
  state.round = header.round;
  if (is_last(header.round) && !state.stored) {
    state.arrival = Arrival::retained;
    return false;
  }
  if (header.round != open_) {
    refuse(contributor, order_error(contributor, header.round, open_));
    return false;
  }
  note_stored(contributor);
  if (Status agreed = agree(contributor, header, bytes); !agreed) {
    // The error becomes the result of the round, and that of this contributor when its payload is over.
    fail_round(agreed.error(), actions);
    state.arrival = Arrival::retained;
    return false;
  }
  state.awaiting = true;
  if (state.phase == Phase::whole || state.phase == Phase::added) {
    state.arrival = Arrival::duplicate;
    return false;
  }
  return true;
}

Status SyncAggregator::agree(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes) {
  if (!begun_) {
    begun_ = true;
    operation_ = header.operation;
    root_ = header.operation == Operation::broadcast ? header.root : Rank{};
    opener_ = contributor;
    if (left_ > 0) {
      const auto gone = std::find_if(states_.begin(), states_.end(), [](const State& s) { return s.left; });
      return left_error(static_cast<std::uint32_t>(gone - states_.begin()));
    }
  }
  if (header.error.code != ErrorCode::ok) return header.error;
  const auto differ = [&](const std::string& theirs, const std::string& mine) {
    return make_error(ErrorCode::configuration,
                      describe(open_) + ": " + describe_rank(opener_) + " pushes " + theirs + ", " +
                          describe_rank(contributor) + " pushes " + mine,
                      "use the same operation and root on all ranks");
  };
  if (header.operation != operation_) {
    return differ(std::string(name_of(operation_)), std::string(name_of(header.operation)));
  }
  const bool broadcast = operation_ == Operation::broadcast;
  if (broadcast && header.root != root_) {
    return differ("broadcast from root " + std::to_string(root_.value),
                  "broadcast from root " + std::to_string(header.root.value));
  }
  if (broadcast && std::none_of(contributors_.begin(), contributors_.end(),
                                [&](const Contributor& c) { return c.holds(root_); })) {
    return no_root_error(root_, open_);
  }
  if (header.weight != contributors_[contributor].weight) {
    return weight_error(contributor, open_, header.weight);
  }
  const std::size_t expected = broadcast && !is_root(contributor) ? 0 : shape_.raw_bytes();
  if (!header.announced && bytes != expected) return length_error(contributor, open_, bytes, expected);
  return {};
}

bool SyncAggregator::lands_in_slot(std::uint32_t contributor) const {
  return operation_ == Operation::broadcast ? is_root(contributor) : contributor == present_from(0);
}

bool SyncAggregator::is_turn(std::uint32_t contributor, const PushPull& header) const {
  if (header.round != open_ || slots_[open_.value % 2].pins > 0) return false;
  if (header.operation == Operation::broadcast) return contributors_[contributor].holds(header.root);
  return is_next(contributor);
}

Destination SyncAggregator::place(std::uint32_t contributor, std::uint64_t bytes) {
  State& state = states_[contributor];
  const bool broadcast = operation_ == Operation::broadcast;
  if (bytes == 0 && broadcast && !lands_in_slot(contributor)) {
    state.arrival = Arrival::empty;
    return Destination{};
  }
  Slot& slot = slot_of(open_);
  if (lands_in_slot(contributor) && slot.pins == 0) {
    state.drop();
    state.arrival = Arrival::slot;
    if (!slot.memory) slot.memory = allocate(memory_.slots, shape_.slot_bytes());
    if (!slot.memory) return Destination{Destination::Kind::memory, nullptr};
    ++slot.pins;
    const std::size_t offset = broadcast ? 0 : reduce::raw_offset(shape_.dtype, shape_.elements);
    return Destination{Destination::Kind::memory, slot.memory.data() + offset};
  }
  if (!broadcast && is_next(contributor) && slot.pins == 0) {
    state.drop();
    state.arrival = Arrival::lane;
    return Destination{Destination::Kind::lane, nullptr};
  }
  if (state.buffer() == nullptr) state.held = allocate(memory_.budget, bytes);
  if (!*state.buffer()) {
    state.drop();
    state.arrival = Arrival::no_room;
    return Destination{};
  }
  state.arrival = Arrival::waiting;
  return Destination{Destination::Kind::memory, state.buffer()->data()};
}

void SyncAggregator::refuse(std::uint32_t contributor, Error error) {
  refusals_.emplace_back(contributor, std::move(error));
  states_[contributor].arrival = Arrival::refused;
}

void SyncAggregator::end(std::uint32_t contributor, const std::byte* lane_buffer, Actions& actions) {
  State& state = states_[contributor];
  const Arrival arrival = state.arrival;
  BPS_ASSERT(arrival != Arrival::none);
  if (arrival == Arrival::refused) {
    const auto refusal = std::find_if(refusals_.begin(), refusals_.end(),
                                      [&](const auto& entry) { return entry.first == contributor; });
    BPS_ASSERT(refusal != refusals_.end());
    emit(actions, Action::Kind::failed, contributor, state.round, std::move(refusal->second));
    refusals_.erase(refusal);
    state.arrival = Arrival::none;
    return;
  }
  if (arrival == Arrival::fenced || arrival == Arrival::fenced_announced) {
    return end_fenced(contributor, actions);
  }
  if (arrival == Arrival::retained || state.round != open_) {
    // Over meanwhile: complete before it was sent again, or failed while it was arriving.
    release_arrival(state);
    reply_retained(contributor, state.round, actions);
    advance(actions);
    return;
  }
  state.arrival = Arrival::none;
  switch (arrival) {
    case Arrival::slot:
      --slot_of(open_).pins;
      land_in_slot(contributor);
      return advance(actions);
    case Arrival::lane:
      // A partition without elements has no payload, but its turn in the order all the same.
      return end_lane(contributor, lane_buffer != nullptr ? lane_buffer : &kEmptyPayload, actions);
    case Arrival::waiting: state.phase = Phase::whole; return advance(actions);
    case Arrival::empty:
      state.phase = Phase::added;
      ++added_;
      return advance(actions);
    case Arrival::announced: state.phase = Phase::later; return recall(actions);
    case Arrival::no_room:
      state.phase = Phase::later;
      emit(actions, Action::Kind::later, contributor, open_);
      return recall(actions);
    default: return recall(actions);  // a duplicate, which may have been lost with a spoiled sum meanwhile
  }
}

void SyncAggregator::end_lane(std::uint32_t contributor, const std::byte* lane_buffer, Actions& actions) {
  State& state = states_[contributor];
  state.phase = Phase::whole;
  lane_input_ = lane_buffer;
  advance(actions);
  lane_input_ = nullptr;
  // Not its turn any more: one before it was lent, and withdrawn.
  if (state.phase == Phase::whole && std::holds_alternative<std::monostate>(state.held)) {
    ready_ = std::min(ready_, contributor);
    set_aside(contributor, lane_buffer, actions);
  }
}

void SyncAggregator::set_aside(std::uint32_t contributor, const std::byte* bytes, Actions& actions) {
  State& state = states_[contributor];
  state.held = allocate(memory_.budget, shape_.raw_bytes());
  if (*state.buffer()) {
    std::memcpy(state.buffer()->data(), bytes, shape_.raw_bytes());
    state.phase = Phase::whole;
    return;
  }
  state.drop();
  state.phase = Phase::later;
  emit(actions, Action::Kind::later, contributor, open_);
  recall(actions);
}

void SyncAggregator::release_arrival(State& state) {
  if (state.arrival == Arrival::slot) {
    --slot_of(state.round).pins;
    release_stale_slots();
  }
  if (state.arrival == Arrival::waiting) state.drop();
  state.arrival = Arrival::none;
}

// ---- contributors that go ----

void SyncAggregator::lost(std::uint32_t contributor, Actions& actions) {
  State& state = states_[contributor];
  if (state.arrival == Arrival::refused) {
    std::erase_if(refusals_, [&](const auto& entry) { return entry.first == contributor; });
  }
  release_arrival(state);
  if (state.phase == Phase::later || state.phase == Phase::asked) {
    state.drop();
    state.phase = Phase::none;
  } else if (state.lent() != nullptr) {
    forget(contributor);
  }
  state.awaiting = false;
  if (fence_ != nullptr) return lost_fenced(contributor, actions);
  advance(actions);
}

void SyncAggregator::left(std::uint32_t contributor, Actions& actions) {
  State& state = states_[contributor];
  if (state.left) return;
  state.left = true;
  ++left_;
  note_stored(contributor);
  if (fence_ != nullptr) return approach(actions);
  if (!begun_ || state.phase == Phase::whole || state.phase == Phase::added) return;
  fail_round(left_error(contributor), actions);
}

}  // namespace bps

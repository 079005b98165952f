#include "server/sync_aggregator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "proto/base/assert.h"

namespace bps {
namespace {
constexpr std::byte kNothing{};
}  // namespace

SyncAggregator::SyncAggregator(PartitionShape shape, std::span<const Contributor> contributors,
                               AggregatorMemory memory)
    : Aggregator(std::move(shape), contributors, memory), states_(contributors.size()) {
  for (const Contributor& contributor : contributors) {
    total_weight_ += contributor.weight;
  }
}

Destination SyncAggregator::begin(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes,
                                  Actions& actions) {
  State& state = states_[contributor];
  BPS_ASSERT(state.arrival == Arrival::none);
  state.round = header.round;
  if (is_last(header.round) && state.phase == Phase::none) {
    return drop(contributor, Arrival::retained);
  }
  if (header.round != open_) return refuse(contributor, order_error(contributor, header.round, open_));
  if (Status agreed = agree(contributor, header, bytes); !agreed) {
    // The error becomes the result of the round, and that of this contributor when its payload is over.
    fail_round(agreed.error(), actions);
    return drop(contributor, Arrival::retained);
  }
  state.awaiting = true;
  if (state.phase == Phase::whole || state.phase == Phase::added)
    return drop(contributor, Arrival::duplicate);
  const Destination destination = admit(contributor, bytes);
  if (state.arrival == Arrival::slot && destination.memory == nullptr) {
    fail_round(make_error(ErrorCode::out_of_memory,
                          describe(open_) + ": the server cannot allocate " +
                              std::to_string(shape_.slot_bytes()) + " bytes",
                          "give the server a smaller --memory-max than the machine has, or add servers"),
               actions);
    return drop(contributor, Arrival::retained);
  }
  return destination;
}

Status SyncAggregator::agree(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes) {
  if (!begun_) {
    begun_ = true;
    operation_ = header.operation;
    root_ = header.operation == Operation::broadcast ? header.root : Rank{};
    opener_ = contributor;
    if (left_ > 0) {
      const auto gone = std::find_if(states_.begin(), states_.end(), [](const State& s) { return s.left; });
      const auto index = static_cast<std::uint32_t>(gone - states_.begin());
      return make_error(
          ErrorCode::configuration,
          describe(open_) + " can never complete: " + describe_rank(index) + " has left the job",
          "let all ranks push the same number of rounds before one closes its client");
    }
  }
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
                                [&](const Contributor& c) { return c.rank == root_; })) {
    return make_error(ErrorCode::configuration,
                      describe(open_) + ": the root of the broadcast, rank " + std::to_string(root_.value) +
                          ", is not among the contributors",
                      "use the rank of a worker of this job as root");
  }
  if (header.weight != contributors_[contributor].weight) {
    return weight_error(contributor, open_, header.weight);
  }
  const std::size_t expected = broadcast && !is_root(contributor) ? 0 : shape_.raw_bytes();
  if (bytes != expected) return length_error(contributor, open_, bytes, expected);
  return {};
}

bool SyncAggregator::lands_in_slot(std::uint32_t contributor) const {
  return operation_ == Operation::broadcast ? is_root(contributor) : contributor == 0;
}

Destination SyncAggregator::admit(std::uint32_t contributor, std::uint64_t bytes) {
  State& state = states_[contributor];
  const bool broadcast = operation_ == Operation::broadcast;
  if (bytes == 0 && !lands_in_slot(contributor) && broadcast) return drop(contributor, Arrival::empty);
  if (lands_in_slot(contributor)) {
    Slot& slot = slot_of(open_);
    if (slot.pins == 0) {
      state.buffer.reset();
      state.arrival = Arrival::slot;
      if (!slot.memory) slot.memory = allocate(memory_.slots, shape_.slot_bytes());
      if (!slot.memory) return Destination{Destination::Kind::memory, nullptr};
      ++slot.pins;
      const std::size_t offset = broadcast ? 0 : reduce::raw_offset(shape_.dtype, shape_.elements);
      return Destination{Destination::Kind::memory, slot.memory.data() + offset};
    }
  } else if (contributor == added_) {
    state.buffer.reset();
    state.arrival = Arrival::lane;
    return Destination{Destination::Kind::lane, nullptr};
  }
  if (!state.buffer) state.buffer = allocate(memory_.budget, bytes);
  if (!state.buffer) return drop(contributor, Arrival::no_room);
  state.arrival = Arrival::waiting;
  return Destination{Destination::Kind::memory, state.buffer.data()};
}

Destination SyncAggregator::drop(std::uint32_t contributor, Arrival why) {
  states_[contributor].arrival = why;
  return Destination{};
}

Destination SyncAggregator::refuse(std::uint32_t contributor, Error error) {
  refusals_.emplace_back(contributor, std::move(error));
  return drop(contributor, Arrival::refused);
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
  if (arrival == Arrival::retained || state.round != open_) {
    // Over meanwhile: complete before it was sent again, or failed while it was arriving.
    release_arrival(state);
    reply_retained(contributor, state.round, actions);
    advance(nullptr, actions);
    return;
  }
  state.arrival = Arrival::none;
  switch (arrival) {
    case Arrival::slot:
      --slot_of(open_).pins;
      land_in_slot(contributor);
      return advance(nullptr, actions);
    case Arrival::lane:
      // A partition without elements has no payload, but its turn in the order all the same.
      return advance(lane_buffer != nullptr ? lane_buffer : &kNothing, actions);
    case Arrival::waiting: state.phase = Phase::whole; return advance(nullptr, actions);
    case Arrival::empty:
      state.phase = Phase::added;
      ++added_;
      return advance(nullptr, actions);
    case Arrival::no_room:
      state.phase = Phase::later;
      emit(actions, Action::Kind::later, contributor, open_);
      return recall(actions);
    default: return;  // duplicate: answered when the round is complete
  }
}

void SyncAggregator::land_in_slot(std::uint32_t contributor) {
  std::byte* const slot = slot_of(open_).memory.data();
  const bool broadcast = operation_ == Operation::broadcast;
  first_ = broadcast ? nullptr : slot + reduce::raw_offset(shape_.dtype, shape_.elements);
  aggregate_[open_.value % 2] = slot;
  states_[contributor].phase = Phase::added;
  ++added_;
}

void SyncAggregator::advance(const std::byte* lane_buffer, Actions& actions) {
  if (!begun_) return;
  Slot& slot = slot_of(open_);
  // The one that belongs into the slot had to wait, because the slot was still being read.
  if (slot.pins == 0) {
    for (std::uint32_t i = 0; i < states_.size(); ++i) {
      State& state = states_[i];
      if (!lands_in_slot(i)) continue;
      if (state.phase != Phase::whole) break;
      BPS_ASSERT(slot.memory);  // it had readers
      const bool broadcast = operation_ == Operation::broadcast;
      std::memcpy(slot.memory.data() + (broadcast ? 0 : reduce::raw_offset(shape_.dtype, shape_.elements)),
                  state.buffer.data(), shape_.raw_bytes());
      state.buffer.reset();
      land_in_slot(i);
      break;
    }
  }
  if (operation_ != Operation::broadcast && added_ > 0) add_waiting(lane_buffer);
  if (added_ == states_.size()) {
    complete(actions);
  } else {
    recall(actions);
  }
}

void SyncAggregator::add_waiting(const std::byte* lane_buffer) {
  std::byte* const slot = slot_of(open_).memory.data();
  std::array<const std::byte*, 16> inputs;
  bool finished = false;
  for (;;) {
    const std::uint32_t first = added_;
    std::size_t n = 0;
    if (lane_buffer != nullptr) inputs[n++] = lane_buffer;
    while (n < inputs.size() && first + n < states_.size() && states_[first + n].phase == Phase::whole) {
      inputs[n] = states_[first + n].buffer.data();
      ++n;
    }
    if (n == 0) break;
    finished = first + n == states_.size();
    if (finished) {
      finish({inputs.data(), n});
    } else {
      reduce::accumulate(shape_.dtype, operation_, slot, {inputs.data(), n}, shape_.elements,
                         std::exchange(first_, nullptr));
    }
    for (std::size_t i = 0; i < n; ++i) {
      states_[first + i].phase = Phase::added;
      states_[first + i].buffer.reset();
    }
    added_ += static_cast<std::uint32_t>(n);
    lane_buffer = nullptr;
  }
  if (added_ == states_.size() && !finished) finish({});  // a lone contributor: it was in the slot already
}

void SyncAggregator::finish(std::span<const std::byte* const> inputs) {
  aggregate_[open_.value % 2] =
      reduce::finish(shape_.dtype, operation_, slot_of(open_).memory.data(), inputs, shape_.elements,
                     total_weight_, std::exchange(first_, nullptr));
}

void SyncAggregator::recall(Actions& actions) {
  if (operation_ == Operation::broadcast || added_ == 0) {
    // Only what belongs into the slot can be waited for; it needs no budget once the slot is free.
    if (slot_of(open_).pins > 0) return;
    for (std::uint32_t i = 0; i < states_.size(); ++i) {
      if (!lands_in_slot(i) || states_[i].phase != Phase::later) continue;
      states_[i].phase = Phase::asked;
      emit(actions, Action::Kind::again, i, open_);
    }
    return;
  }
  for (std::uint32_t i = added_; i < states_.size(); ++i) {
    State& state = states_[i];
    if (state.phase != Phase::later || state.arrival != Arrival::none) continue;
    // The next one goes through its lane's buffer. Those behind it are asked as far as there is room, so that
    // they need not come one round trip after the other.
    if (i > added_) {
      state.buffer = allocate(memory_.budget, shape_.raw_bytes());
      if (!state.buffer) return;
    }
    state.phase = Phase::asked;
    emit(actions, Action::Kind::again, i, open_);
  }
}

void SyncAggregator::complete(Actions& actions) {
  const Round round = open_;
  last_error_ = {};
  last_weight_ = operation_ == Operation::broadcast ? 0 : total_weight_;
  if (operation_ == Operation::broadcast) {
    for (const Contributor& contributor : contributors_) {
      if (contributor.rank == root_) last_weight_ = contributor.weight;
    }
  }
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    if (states_[i].awaiting && states_[i].arrival == Arrival::none) answer(i, round, actions);
  }
  close_round();
}

void SyncAggregator::fail_round(Error error, Actions& actions) {
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    // What is arriving, or has been asked for and will arrive, is answered at its end.
    if (!state.awaiting || state.arrival != Arrival::none || state.phase == Phase::asked) continue;
    emit(actions, Action::Kind::failed, i, open_, error);
  }
  last_error_ = std::move(error);
  for (State& state : states_) {
    if (state.arrival != Arrival::waiting) state.buffer.reset();
  }
  close_round();
}

void SyncAggregator::close_round() {
  for (State& state : states_) {
    state.phase = Phase::none;
    state.awaiting = false;
  }
  open_ = open_.next();
  begun_ = false;
  added_ = 0;
}

void SyncAggregator::answer(std::uint32_t contributor, Round round, Actions& actions) {
  Slot& slot = slot_of(round);
  ++slot.pins;
  emit(actions, Action::Kind::answer, contributor, round);
  Action& action = actions.back();
  action.payload = {aggregate_[round.value % 2], shape_.raw_bytes()};
  action.pin = static_cast<std::uint32_t>(round.value % 2);
  action.weight = last_weight_;
}

void SyncAggregator::reply_retained(std::uint32_t contributor, Round round, Actions& actions) {
  if (!is_last(round)) {
    emit(actions, Action::Kind::failed, contributor, round, order_error(contributor, round, open_));
  } else if (last_error_.code != ErrorCode::ok) {
    emit(actions, Action::Kind::failed, contributor, round, last_error_);
  } else {
    answer(contributor, round, actions);
  }
}

void SyncAggregator::release_arrival(State& state) {
  if (state.arrival == Arrival::slot) --slot_of(state.round).pins;
  if (state.arrival == Arrival::waiting) state.buffer.reset();
  state.arrival = Arrival::none;
}

void SyncAggregator::lost(std::uint32_t contributor, Actions& actions) {
  State& state = states_[contributor];
  if (state.arrival == Arrival::refused) {
    std::erase_if(refusals_, [&](const auto& entry) { return entry.first == contributor; });
  }
  release_arrival(state);
  if (state.phase == Phase::later || state.phase == Phase::asked) {
    state.buffer.reset();
    state.phase = Phase::none;
  }
  state.awaiting = false;
  advance(nullptr, actions);
}

void SyncAggregator::left(std::uint32_t contributor, Actions& actions) {
  State& state = states_[contributor];
  if (state.left) return;
  state.left = true;
  ++left_;
  if (!begun_ || state.phase == Phase::whole || state.phase == Phase::added) return;
  fail_round(
      make_error(ErrorCode::configuration,
                 describe(open_) + " can never complete: " + describe_rank(contributor) + " has left the job",
                 "let all ranks push the same number of rounds before one closes its client"),
      actions);
}

void SyncAggregator::unpin(std::uint32_t pin, Actions& actions) {
  BPS_ASSERT(pin < slots_.size() && slots_[pin].pins > 0);
  if (--slots_[pin].pins == 0 && pin == open_.value % 2) advance(nullptr, actions);
}

}  // namespace bps

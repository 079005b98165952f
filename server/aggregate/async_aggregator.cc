#include "server/aggregate/async_aggregator.h"

#include <algorithm>
#include <cstring>

#include "proto/base/assert.h"

namespace bps {
AsyncAggregator::AsyncAggregator(PartitionShape shape, std::span<const Contributor> contributors,
                                 AggregatorMemory memory)
    : Aggregator(std::move(shape), contributors, memory), states_(contributors.size()), snapshots_(1) {
  if (!shape_.moved) return;
  fence_ = std::make_unique<Fence>();
  fence_->reports.resize(contributors.size());
  fence_->missing = static_cast<std::uint32_t>(contributors.size());
}

Status AsyncAggregator::check(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes) const {
  if (header.error.code != ErrorCode::ok) return header.error;
  const bool broadcast = header.operation == Operation::broadcast;
  if (header.operation == Operation::average) {
    return make_error(ErrorCode::configuration,
                      describe(header.round) + ": " + describe_rank(contributor) +
                          " pushes average, which an asynchronous tensor does not know",
                      "push sum, with deltas divided by the number of workers");
  }
  if (header.weight != contributors_[contributor].weight) {
    return weight_error(contributor, header.round, header.weight);
  }
  if (!broadcast && lost_value_.code != ErrorCode::ok) return lost_value_;
  if (broadcast) {
    const auto root = std::find_if(contributors_.begin(), contributors_.end(),
                                   [&](const Contributor& c) { return c.rank == header.root; });
    if (root == contributors_.end()) return no_root_error(header.root, header.round);
    const std::uint32_t mine = states_[contributor].broadcasts + 1;
    const auto root_index = static_cast<std::uint32_t>(root - contributors_.begin());
    if (states_[root_index].left && broadcasts_ < mine) return root_left_error(root_index, header.round);
    for (std::uint32_t i = 0; i < states_.size(); ++i) {
      const State& other = states_[i];
      if (i == contributor || other.broadcasts != mine) continue;
      if (!other.has_root || other.root == header.root) continue;
      return make_error(ErrorCode::configuration,
                        describe(header.round) + ": " + describe_rank(i) + " pushes broadcast from root " +
                            std::to_string(other.root.value) + ", " + describe_rank(contributor) +
                            " pushes broadcast from root " + std::to_string(header.root.value),
                        "use the same root on all ranks");
    }
  }
  const bool empty = broadcast && contributors_[contributor].rank != header.root;
  const std::size_t expected = empty ? 0 : shape_.raw_bytes();
  if (!header.announced && bytes != expected) return length_error(contributor, header.round, bytes, expected);
  return {};
}

Error AsyncAggregator::root_left_error(std::uint32_t root, Round round) const {
  if (!contributors_[root].loss.empty()) return root_lost_error(root, round);
  return make_error(
      ErrorCode::configuration,
      describe(round) + " can never complete: its root, " + describe_rank(root) + ", has left the job",
      "let the root broadcast before it closes its client");
}

Destination AsyncAggregator::begin(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes,
                                   Actions&) {
  State& state = states_[contributor];
  BPS_ASSERT(state.arrival == Arrival::none);
  state.arriving = header.round;
  if (fence_ != nullptr)
    return drop(contributor, header.announced ? Arrival::fenced_announced : Arrival::fenced);
  const bool again = state.next.value > 0 && header.round.value == state.next.value - 1;
  if (again) {
    if (state.elsewhere) learn(state, header);
    return drop(contributor, Arrival::duplicate);
  }
  const bool broadcast = header.operation == Operation::broadcast;
  Status status = header.round == state.next ? check(contributor, header, bytes)
                                             : Status(order_error(contributor, header.round, state.next));
  if (status && (broadcast || has_value_) && !allocate_value()) {
    status = make_error(ErrorCode::out_of_memory,
                        describe(header.round) + ": the server cannot allocate the value of the tensor",
                        "give the server a smaller --memory-max than the machine has, or add servers");
  }
  if (!status) {
    refusals_.emplace_back(contributor, status.error());
    return drop(contributor, Arrival::refused);
  }
  if (state.phase == Phase::whole) return drop(contributor, Arrival::duplicate);
  state.operation = header.operation;
  if (header.announced) return drop(contributor, Arrival::announced);
  if (broadcast) {
    state.root = header.root;
    state.has_root = true;
    if (contributors_[contributor].rank != header.root) return drop(contributor, Arrival::empty);
    state.arrival = Arrival::value;
    return Destination{Destination::Kind::lane, nullptr};
  }
  if (has_value_) {
    state.arrival = Arrival::delta;
    return Destination{Destination::Kind::lane, nullptr};
  }
  state.buffer = allocate(memory_.budget, bytes);
  if (!state.buffer) return drop(contributor, Arrival::no_room);
  state.arrival = Arrival::wait;
  return Destination{Destination::Kind::memory, state.buffer.data()};
}

Destination AsyncAggregator::drop(std::uint32_t contributor, Arrival why) {
  states_[contributor].arrival = why;
  return Destination{};
}

void AsyncAggregator::end(std::uint32_t contributor, const std::byte* lane_buffer, Actions& actions) {
  State& state = states_[contributor];
  const Arrival arrival = state.arrival;
  state.arrival = Arrival::none;
  if (lane_buffer == nullptr) lane_buffer = &kEmptyPayload;
  switch (arrival) {
    case Arrival::none: BPS_ASSERT(false && "end() without begin()"); return;
    case Arrival::delta:
      apply(state.operation, lane_buffer);
      count(contributor);
      break;
    case Arrival::wait:
      state.phase = Phase::whole;
      state.awaiting = true;
      if (has_value_) {  // set while the delta was arriving
        apply(state.operation, state.buffer.data());
        state.buffer.reset();
        count(contributor);
      }
      break;
    case Arrival::value:
      count(contributor);
      ++state.broadcasts;
      broadcasts_ = std::max(broadcasts_, state.broadcasts);
      set_value(lane_buffer, actions);
      break;
    case Arrival::empty:
      count(contributor);
      ++state.broadcasts;
      break;
    case Arrival::announced:
    case Arrival::no_room:
      if (arrival == Arrival::no_room) emit(actions, Action::Kind::later, contributor, state.arriving);
      state.phase = Phase::later;
      if (!has_value_ && state.operation != Operation::broadcast) break;
      state.phase = Phase::asked;
      emit(actions, Action::Kind::again, contributor, state.arriving);
      break;
    case Arrival::duplicate:
      if (state.arriving < state.next && state.error.code != ErrorCode::ok) {
        emit(actions, Action::Kind::failed, contributor, state.arriving, state.error);
        break;
      }
      state.awaiting = true;
      if (state.phase == Phase::idle) state.phase = Phase::waiting;
      for (std::uint32_t i = 0; i < states_.size(); ++i) {
        if (states_[i].left) strand(contributor, i, actions);
      }
      break;
    case Arrival::refused: {
      const auto refusal = std::find_if(refusals_.begin(), refusals_.end(),
                                        [&](const auto& entry) { return entry.first == contributor; });
      BPS_ASSERT(refusal != refusals_.end());
      emit(actions, Action::Kind::failed, contributor, state.arriving, refusal->second);
      if (state.arriving == state.next && state.phase != Phase::whole) {
        state.next = state.next.next();
        state.error = std::move(refusal->second);
        state.phase = Phase::idle;
        state.awaiting = false;
      }
      refusals_.erase(refusal);
      break;
    }
    case Arrival::fenced:
    case Arrival::fenced_announced:
      end_fenced(contributor, arrival == Arrival::fenced_announced, actions);
      break;
  }
  fail_if_all_wait(actions);
  settle(actions);
}

void AsyncAggregator::count(std::uint32_t contributor) {
  State& state = states_[contributor];
  state.next = state.next.next();
  state.last_operation = state.operation;
  state.elsewhere = false;
  state.error = {};
  state.phase = Phase::waiting;
  state.awaiting = true;
}

void AsyncAggregator::learn(State& state, const PushPull& header) {
  state.elsewhere = false;
  state.last_operation = header.operation;
  if (header.operation != Operation::broadcast) return;
  ++state.broadcasts;
  state.root = header.root;
  state.has_root = true;
}

bool AsyncAggregator::allocate_value() {
  BufferPool::Buffer& own = snapshots_[0].memory;
  if (!value_) value_ = allocate(memory_.slots, shape_.slot_bytes());
  if (!own) own = allocate(memory_.slots, shape_.raw_bytes());
  return value_ && own;
}

void AsyncAggregator::apply(Operation operation, const std::byte* delta) {
  const std::byte* const inputs[] = {delta};
  reduce::accumulate(shape_.dtype, operation, value_.data(), inputs, shape_.elements);
  ++change_;
}

void AsyncAggregator::set_value(const std::byte* raw, Actions& actions) {
  if (shape_.raw_bytes() > 0) {
    std::memcpy(value_.data() + reduce::raw_offset(shape_.dtype, shape_.elements), raw, shape_.raw_bytes());
  }
  reduce::widen_in_place(shape_.dtype, value_.data(), shape_.elements);
  ++change_;
  lost_value_ = {};
  if (has_value_) return;
  has_value_ = true;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    if (state.phase == Phase::whole) {
      apply(state.operation, state.buffer.data());
      state.buffer.reset();
      const bool awaiting = state.awaiting;
      count(i);
      state.awaiting = awaiting;
    } else if (state.phase == Phase::later) {
      state.phase = Phase::asked;
      emit(actions, Action::Kind::again, i, state.next);
    }
  }
}

// A worker has one operation of a tensor under way: who waits sends no broadcast.
void AsyncAggregator::fail_if_all_wait(Actions& actions) {
  if (has_value_ || fence_ != nullptr) return;
  const bool all_wait = std::all_of(states_.begin(), states_.end(), [](const State& state) {
    return state.left || state.phase == Phase::whole ||
           (state.phase == Phase::later && state.arrival == Arrival::none);
  });
  if (!all_wait) return;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    if (state.left) continue;
    state.error = make_error(
        ErrorCode::configuration,
        describe(state.next) + " can never complete: the tensor has no value yet, and all ranks push deltas",
        "broadcast an asynchronous tensor first: that sets its value");
    // One that is being sent again is answered at its end.
    if ((state.phase == Phase::later || state.awaiting) && state.arrival == Arrival::none) {
      emit(actions, Action::Kind::failed, i, state.next, state.error);
    }
    state.buffer.reset();
    state.next = state.next.next();
    state.phase = Phase::idle;
    state.awaiting = false;
  }
}

bool AsyncAggregator::is_due(const State& state, Round slowest) const {
  if (state.phase != Phase::waiting || !state.awaiting || state.arrival != Arrival::none) return false;
  if (!has_value_) return false;
  if (state.last_operation == Operation::broadcast) return state.broadcasts <= broadcasts_;
  if (shape_.staleness == kUnboundedStaleness) return true;
  return slowest.value + shape_.staleness >= state.next.value;
}

void AsyncAggregator::settle(Actions& actions) {
  if (fence_ != nullptr) return;
  Round slowest{~std::uint64_t{0} - kUnboundedStaleness};
  for (const State& state : states_) {
    if (!state.left) slowest = std::min(slowest, state.next);
  }
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    if (!is_due(state, slowest)) continue;
    // Also to the root of a broadcast: what it has sent may be an older value already, and it is to keep
    // this.
    const bool with_payload = shape_.raw_bytes() > 0;
    const int snapshot = with_payload ? take_snapshot() : 0;
    if (snapshot < 0) return;  // unpin() settles again
    state.phase = Phase::idle;
    state.awaiting = false;
    emit(actions, Action::Kind::answer, i, Round{state.next.value - 1});
    Action& action = actions.back();
    if (with_payload) {
      const Snapshot& taken = snapshots_[static_cast<std::size_t>(snapshot)];
      attach(action, taken.memory, taken.memory.data(), static_cast<std::uint32_t>(snapshot));
      action.applied = taken.applied;
    }
    action.weight = contributors_[i].weight;
    action.version = change_;
    action.broadcasts = broadcasts_;
  }
}

int AsyncAggregator::take_snapshot() {
  int free = -1;
  for (std::size_t i = 0; i < snapshots_.size(); ++i) {
    Snapshot& snapshot = snapshots_[i];
    if (snapshot.memory && snapshot.change == change_) {
      ++snapshot.pins;
      return static_cast<int>(i);
    }
    if (free < 0 && snapshot.pins == 0) free = static_cast<int>(i);
  }
  if (free < 0) {
    free = static_cast<int>(snapshots_.size());
    snapshots_.emplace_back();
  }
  Snapshot& snapshot = snapshots_[static_cast<std::size_t>(free)];
  if (!snapshot.memory) snapshot.memory = allocate(memory_.budget, shape_.raw_bytes());
  if (!snapshot.memory) return -1;
  reduce::snapshot(shape_.dtype, value_.data(), snapshot.memory.data(), shape_.elements);
  snapshot.change = change_;
  snapshot.applied.assign(contributors_.back().rank.value + 1, Round{});
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    // Who has not heard that its last round has failed pushes it again.
    const State& state = states_[i];
    const std::uint64_t failed = state.error.code != ErrorCode::ok ? 1 : 0;
    snapshot.applied[contributors_[i].rank.value] = Round{state.next.value - failed};
  }
  snapshot.pins = 1;
  return free;
}

void AsyncAggregator::lost(std::uint32_t contributor, Actions& actions) {
  State& state = states_[contributor];
  if (state.arrival == Arrival::wait) state.buffer.reset();
  if (state.arrival == Arrival::refused) {
    std::erase_if(refusals_, [&](const auto& entry) { return entry.first == contributor; });
  }
  state.arrival = Arrival::none;
  if (state.phase != Phase::whole) state.phase = Phase::idle;
  state.awaiting = false;
  if (fence_ != nullptr) return lost_fenced(contributor, actions);
  settle(actions);
}

void AsyncAggregator::left(std::uint32_t contributor, Actions& actions) {
  states_[contributor].left = true;
  if (fence_ != nullptr) return;  // it lingers, and resumes
  for (std::uint32_t i = 0; i < states_.size(); ++i)
    strand(i, contributor, actions);
  fail_if_all_wait(actions);
  settle(actions);
}

// Also one whose lane is lost: it will ask again.
void AsyncAggregator::strand(std::uint32_t contributor, std::uint32_t root, Actions& actions) {
  State& state = states_[contributor];
  const bool stranded = state.last_operation == Operation::broadcast && state.broadcasts > broadcasts_ &&
                        state.has_root && state.root == contributors_[root].rank &&
                        state.error.code == ErrorCode::ok;
  if (!stranded) return;
  const Round round{state.next.value - 1};
  state.phase = Phase::idle;
  state.error = root_left_error(root, round);
  if (state.awaiting && state.arrival == Arrival::none) {
    emit(actions, Action::Kind::failed, contributor, round, state.error);
  }
  state.awaiting = false;
}

void AsyncAggregator::unpin(std::uint32_t pin, Actions& actions) {
  BPS_ASSERT(pin < snapshots_.size() && snapshots_[pin].pins > 0);
  Snapshot& snapshot = snapshots_[pin];
  if (--snapshot.pins > 0) return;
  if (pin > 0) snapshot.memory.reset();  // its place is used again
  settle(actions);
}

}  // namespace bps

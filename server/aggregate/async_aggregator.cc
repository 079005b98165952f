#include "server/aggregate/async_aggregator.h"

#include <algorithm>
#include <cstring>

#include "proto/base/assert.h"

namespace bps {

AsyncAggregator::AsyncAggregator(PartitionShape shape, std::span<const Contributor> contributors,
                                 AggregatorMemory memory, PartitionMemory own)
    : Aggregator(std::move(shape), contributors, memory),
      states_(contributors.size()),
      value_(std::move(own.slot)),
      snapshots_(1) {
  snapshots_[0].memory = std::move(own.snapshot);
  if (shape_.moved) handoff_ = std::make_unique<RoundHandoff>(contributors.size());
}

Status AsyncAggregator::check(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes) const {
  if (header.error.code != ErrorCode::ok) return header.error;
  const RoundCall& call = header.call;
  const bool broadcast = call.is_broadcast();
  if (!broadcast && call.kind != RoundKind::push_pull) return errors_.kind(contributor, header.round, call);
  if (call.operation == Operation::average) {
    return make_error(ErrorCode::configuration,
                      errors_.describe(header.round) + ": " + errors_.describe_rank(contributor) +
                          " calls average, which an asynchronous tensor does not know",
                      "push sum, with deltas divided by the number of workers");
  }
  if (header.dtype != shape_.dtype) return errors_.dtype(contributor, header.round, header.dtype);
  if (!is_defined(call.operation, shape_.dtype))
    return errors_.type(contributor, header.round, call.operation);
  if (header.weight != contributors_[contributor].weight) {
    return errors_.weight(contributor, header.round, header.weight);
  }
  if (!header.scale.is_none())
    return errors_.scale(contributor, header.round, 0, "is scaled: the tensor is asynchronous");
  if (!broadcast && lost_value_.code != ErrorCode::ok) return lost_value_;
  if (broadcast) {
    const auto root = std::find_if(contributors_.begin(), contributors_.end(),
                                   [&](const Contributor& c) { return c.rank == call.root; });
    if (root == contributors_.end()) return errors_.no_root(call, call.root, header.round);
    const std::uint32_t mine = states_[contributor].broadcasts + 1;
    const auto root_index = static_cast<std::uint32_t>(root - contributors_.begin());
    if (states_[root_index].left && broadcasts_ < mine) return root_left_error(root_index, header.round);
    for (std::uint32_t i = 0; i < states_.size(); ++i) {
      const State& other = states_[i];
      if (i == contributor || other.broadcasts != mine) continue;
      if (!other.has_root || other.root == call.root) continue;
      return errors_.differ(header.round, i, to_string(RoundCall::broadcast(other.root)), contributor,
                            to_string(call));
    }
  }
  const bool empty = broadcast && contributors_[contributor].rank != header.call.root;
  const std::size_t expected = empty ? 0 : shape_.raw_bytes();
  if (!header.rendezvous && bytes != expected)
    return errors_.length(contributor, header.round, bytes, expected);
  return {};
}

Error AsyncAggregator::root_left_error(std::uint32_t root, Round round) const {
  if (!contributors_[root].loss.empty()) return errors_.root_lost(root, RoundCall::broadcast({}), round);
  return errors_.root_left(root, round);
}

Destination AsyncAggregator::begin(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes,
                                   Actions&) {
  State& state = states_[contributor];
  BPS_ASSERT(state.arrival == Arrival::none);
  state.arriving = header.round;
  if (handoff_ != nullptr)
    return drop(contributor, header.rendezvous ? Arrival::resumes_rendezvous : Arrival::resumes);
  const bool again = state.next.value > 0 && header.round.value == state.next.value - 1;
  if (again) {
    if (state.elsewhere) learn(state, header);
    return drop(contributor, Arrival::duplicate);
  }
  const bool broadcast = header.call.is_broadcast();
  Status status = header.round == state.next ? check(contributor, header, bytes)
                                             : Status(errors_.order(contributor, header.round, state.next));
  if (!status) {
    refusals_.emplace_back(contributor, status.error());
    return drop(contributor, Arrival::refused);
  }
  if (state.phase == Phase::whole) return drop(contributor, Arrival::duplicate);
  state.call = header.call;
  if (header.rendezvous) return drop(contributor, Arrival::rendezvous);
  if (broadcast) {
    state.root = header.call.root;
    state.has_root = true;
    if (contributors_[contributor].rank != header.call.root) return drop(contributor, Arrival::empty);
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
      apply(state.call.operation, lane_buffer);
      count(contributor);
      break;
    case Arrival::wait:
      state.phase = Phase::whole;
      state.awaiting = true;
      if (has_value_) {  // set while the delta was arriving
        apply(state.call.operation, state.buffer.data());
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
    case Arrival::rendezvous:
    case Arrival::no_room:
      if (arrival == Arrival::no_room) emit(actions, Action::Kind::not_ready, contributor, state.arriving);
      state.phase = Phase::not_ready;
      if (!has_value_ && !state.call.is_broadcast()) break;
      state.phase = Phase::cleared;
      emit(actions, Action::Kind::clear_to_send, contributor, state.arriving);
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
    case Arrival::resumes:
    case Arrival::resumes_rendezvous:
      end_in_handoff(contributor, arrival == Arrival::resumes_rendezvous, actions);
      break;
  }
  fail_if_all_wait(actions);
  settle(actions);
}

void AsyncAggregator::count(std::uint32_t contributor) {
  State& state = states_[contributor];
  state.next = state.next.next();
  state.last_kind = state.call.kind;
  state.elsewhere = false;
  state.error = {};
  state.phase = Phase::waiting;
  state.awaiting = true;
}

void AsyncAggregator::learn(State& state, const PushPull& header) {
  state.elsewhere = false;
  state.last_kind = header.call.kind;
  if (!header.call.is_broadcast()) return;
  ++state.broadcasts;
  state.root = header.call.root;
  state.has_root = true;
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
      apply(state.call.operation, state.buffer.data());
      state.buffer.reset();
      const bool awaiting = state.awaiting;
      count(i);
      state.awaiting = awaiting;
    } else if (state.phase == Phase::not_ready) {
      state.phase = Phase::cleared;
      emit(actions, Action::Kind::clear_to_send, i, state.next);
    }
  }
}

// A worker has one operation of a tensor under way: who waits sends no broadcast.
void AsyncAggregator::fail_if_all_wait(Actions& actions) {
  if (has_value_ || handoff_ != nullptr) return;
  const bool all_wait = std::all_of(states_.begin(), states_.end(), [](const State& state) {
    return state.left || state.phase == Phase::whole ||
           (state.phase == Phase::not_ready && state.arrival == Arrival::none);
  });
  if (!all_wait) return;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    if (state.left) continue;
    state.error =
        make_error(ErrorCode::configuration,
                   errors_.describe(state.next) +
                       " can never complete: the tensor has no value yet, and all ranks push deltas",
                   "broadcast an asynchronous tensor first: that sets its value");
    // One that is being sent again is answered at its end.
    if ((state.phase == Phase::not_ready || state.awaiting) && state.arrival == Arrival::none) {
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
  if (state.last_kind == RoundKind::broadcast) return state.broadcasts <= broadcasts_;
  if (shape_.staleness == kUnboundedStaleness) return true;
  return slowest.value + shape_.staleness >= state.next.value;
}

void AsyncAggregator::settle(Actions& actions) {
  if (handoff_ != nullptr) return;
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
      attach(action, taken.memory, {taken.memory.data(), shape_.raw_bytes()},
             static_cast<std::uint32_t>(snapshot));
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
  if (handoff_ != nullptr) {
    // Half a value is overwritten by the next one.
    if (handoff_->lost(contributor)) approach(actions);
    return;
  }
  settle(actions);
}

void AsyncAggregator::left(std::uint32_t contributor, Actions& actions) {
  states_[contributor].left = true;
  if (handoff_ != nullptr) return;  // it lingers, and resumes
  for (std::uint32_t i = 0; i < states_.size(); ++i)
    strand(i, contributor, actions);
  fail_if_all_wait(actions);
  settle(actions);
}

// Also one whose lane is lost: it will ask again.
void AsyncAggregator::strand(std::uint32_t contributor, std::uint32_t root, Actions& actions) {
  State& state = states_[contributor];
  const bool stranded = state.last_kind == RoundKind::broadcast && state.broadcasts > broadcasts_ &&
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

// The one that waits for the lowest round counts: for a broadcast, of the root that it named or of anybody;
// for the slowest ones otherwise.
bool AsyncAggregator::open_state(OpenState& out) const {
  out.absent.clear();
  out.stage = handoff_ != nullptr ? RoundStage::resume : RoundStage::push;
  if (handoff_ != nullptr) {
    out.round = handoff_->highest();
    handoff_->name_absent(out.absent);
    return true;
  }
  const State* waiting = nullptr;
  Round lowest;
  for (const State& state : states_) {
    const bool counted = state.phase == Phase::waiting && state.awaiting;
    const bool before_value = !has_value_ && (state.phase == Phase::whole || state.phase == Phase::not_ready);
    if (!counted && !before_value) continue;
    const Round round{counted ? state.next.value - 1 : state.next.value};
    if (waiting != nullptr && round >= lowest) continue;
    waiting = &state;
    lowest = round;
  }
  if (waiting == nullptr) return false;
  out.round = lowest;
  const bool for_root = waiting->phase == Phase::waiting && waiting->last_kind == RoundKind::broadcast;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    if (state.left) continue;
    const bool absent = for_root ? contributors_[i].rank == waiting->root && waiting->broadcasts > broadcasts_
                        : !has_value_ ? state.phase == Phase::idle || state.phase == Phase::cleared
                                      : shape_.staleness != kUnboundedStaleness &&
                                            state.next.value + shape_.staleness < waiting->next.value;
    if (absent) out.absent.push_back(i);
  }
  return true;
}

// ---- while the partition is in handoff ----

void AsyncAggregator::resume(std::uint32_t contributor, const StoredRounds& stored, Actions& actions) {
  if (handoff_ != nullptr) return report(contributor, stored, false, actions);
  catch_up(contributor, stored.round, false, actions);
}

void AsyncAggregator::end_in_handoff(std::uint32_t contributor, bool rendezvous, Actions& actions) {
  const State& state = states_[contributor];
  const bool waits =
      handoff_ != nullptr ? handoff_->allows(contributor, state.arriving) : state.arriving == state.next;
  if (waits && !rendezvous) emit(actions, Action::Kind::not_ready, contributor, state.arriving);
  if (handoff_ != nullptr) {
    return report(contributor, StoredRounds{shape_.partition, state.arriving}, true, actions);
  }
  // It had resumed before, and the others have done so meanwhile.
  catch_up(contributor, state.arriving, true, actions);
}

void AsyncAggregator::report(std::uint32_t contributor, const StoredRounds& stored, bool pushed,
                             Actions& actions) {
  if (!handoff_->resume(contributor, stored, pushed)) {
    return emit(actions, Action::Kind::failed, contributor, stored.round,
                errors_.order(contributor, stored.round, handoff_->report(contributor).next));
  }
  approach(actions);
}

void AsyncAggregator::gone(std::uint32_t contributor, Actions& actions) {
  if (handoff_ == nullptr) return;
  handoff_->gone(contributor);
  approach(actions);
}

void AsyncAggregator::died(std::uint32_t contributor, Actions& actions) {
  if (handoff_ == nullptr) return left(contributor, actions);
  states_[contributor].left = true;
  handoff_->died(contributor);
  approach(actions);
}

void AsyncAggregator::approach(Actions& actions) {
  if (!handoff_->is_settled()) return;
  std::uint64_t newest = 0;
  for (std::uint32_t i = 0; i < states_.size(); ++i)
    newest = std::max(newest, handoff_->report(i).version);
  change_ = newest;
  if (newest == 0) return end_handoff(actions);
  const RoundHandoff::Holders holders =
      handoff_->holders([&](const RoundHandoff::Report& report) { return report.version == newest; });
  if (holders.first != kNobody) {
    handoff_->ask(holders.first, Round{}, newest);
    emit(actions, Action::Kind::fetch, holders.first, Round{});
    actions.back().version = newest;
    return;
  }
  if (holders.may_return) return;
  // What the last one of them reported, if any was asked.
  const Error& reported = handoff_->result().error;
  lost_value_ = reported.code != ErrorCode::ok ? reported : nobody_has_error();
  end_handoff(actions);
}

Error AsyncAggregator::nobody_has_error() const {
  return make_error(ErrorCode::peer_lost,
                    "the value of " + shape_.tensor + " (partition " +
                        std::to_string(shape_.partition.value) +
                        ") is lost: its server is gone, and whoever had the last answer has left the job",
                    "broadcast the tensor again, or start the job from its last checkpoint");
}

Destination AsyncAggregator::begin_retained(std::uint32_t contributor, const Retained& header,
                                            std::uint64_t bytes) {
  if (handoff_ == nullptr || !handoff_->begin(contributor, header, bytes, shape_, errors_))
    return Destination{};
  return Destination{Destination::Kind::memory,
                     value_.data() + reduce::raw_offset(shape_.dtype, shape_.elements)};
}

void AsyncAggregator::end_retained(std::uint32_t contributor, Actions& actions) {
  if (handoff_ == nullptr || !handoff_->is_arriving(contributor)) return;
  if (handoff_->result().error.code != ErrorCode::ok) {
    handoff_->miss();
    return approach(actions);
  }
  reduce::widen_in_place(shape_.dtype, value_.data(), shape_.elements);
  has_value_ = true;
  broadcasts_ = handoff_->result().broadcasts;
  end_handoff(actions);
}

void AsyncAggregator::end_handoff(Actions& actions) {
  const std::unique_ptr<RoundHandoff> handoff = std::move(handoff_);
  const std::vector<Round>& in_value = handoff->result().applied;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    const RoundHandoff::Report& report = handoff->report(i);
    const std::uint32_t rank = contributors_[i].rank.value;
    const Round applied = has_value_ && rank < in_value.size() ? in_value[rank] : Round{};
    // A round that is over there and not in the value has failed.
    state.next = std::max(applied, report.next);
    state.broadcasts = report.broadcasts;
    state.elsewhere = true;
  }
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    const RoundHandoff::Report& report = handoff->report(i);
    if (report.here) catch_up(i, report.next, report.pushed, actions);
  }
}

void AsyncAggregator::catch_up(std::uint32_t contributor, Round next, bool pushed, Actions& actions) {
  const State& state = states_[contributor];
  emit(actions, Action::Kind::resumed, contributor, state.next);
  // What is arriving from it is answered when it is whole, by end_in_handoff().
  if (state.arrival == Arrival::resumes || state.arrival == Arrival::resumes_rendezvous) return;
  const bool is_in_order = next == state.next || next.next() == state.next;
  if (!is_in_order) {
    emit(actions, Action::Kind::failed, contributor, next, errors_.order(contributor, next, state.next));
  } else if (pushed) {
    emit(actions, Action::Kind::clear_to_send, contributor, next);
  }
}

}  // namespace bps

// What comes of a round: its aggregate or its failure, who gets it, and how long it is kept.
#include "proto/base/assert.h"
#include "server/aggregate/sync_aggregator.h"

namespace bps {

void SyncAggregator::complete(Actions& actions) {
  const Round round = open_;
  const bool broadcast = operation_ == Operation::broadcast;
  last_error_ = {};
  last_weight_ = broadcast ? 0 : total_weight_;
  last_root_ = kNobody;
  for (std::uint32_t i = 0; broadcast && i < states_.size(); ++i) {
    if (!is_root(i)) continue;
    // Not before all have come: nobody is to miss the round before because this one is over at once.
    if (is_absent(i)) return fail_round(root_lost_error(i, open_), actions);
    last_root_ = i;
    last_weight_ = contributors_[i].weight;
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
    if (state.arrival != Arrival::waiting) state.drop();
  }
  close_round();
}

void SyncAggregator::close_round() {
  unstored_ = 0;
  for (State& state : states_) {
    state.phase = state.dead ? Phase::absent : Phase::none;
    state.awaiting = false;
    state.stored = state.left || state.dead;
    unstored_ += state.stored ? 0 : 1;
  }
  absent_ = dead_;
  total_weight_ = live_weight_;
  open_ = open_.next();
  begun_ = false;
  added_ = 0;
  ready_ = 0;
  hurry_ = false;
  release_stale_slots();
}

void SyncAggregator::note_stored(std::uint32_t contributor) {
  State& state = states_[contributor];
  if (state.stored) return;
  state.stored = true;
  if (--unstored_ == 0) release_stale_slots();
}

void SyncAggregator::release_stale_slots() {
  for (std::uint64_t parity = 0; parity < slots_.size(); ++parity) {
    Slot& slot = slots_[parity];
    if (!slot.memory || slot.pins > 0) continue;
    const bool is_open = parity == open_.value % 2;
    const bool needed = is_open ? added_ > 0 : unstored_ > 0 && last_error_.code == ErrorCode::ok;
    if (!needed) slot.memory.reset();
  }
}

void SyncAggregator::answer(std::uint32_t contributor, Round round, Actions& actions) {
  emit(actions, Action::Kind::answer, contributor, round);
  Action& action = actions.back();
  action.weight = last_weight_;
  if (contributor == last_root_ || shape_.raw_bytes() == 0) return;
  Slot& slot = slot_of(round);
  ++slot.pins;
  attach(action, slot.memory, aggregate_[round.value % 2], static_cast<std::uint32_t>(round.value % 2));
}

void SyncAggregator::reply_retained(std::uint32_t contributor, Round round, Actions& actions) {
  const bool kept = is_last(round) && (last_error_.code != ErrorCode::ok || slot_of(round).memory);
  if (!kept) {
    emit(actions, Action::Kind::failed, contributor, round, order_error(contributor, round, open_));
  } else if (last_error_.code != ErrorCode::ok) {
    emit(actions, Action::Kind::failed, contributor, round, last_error_);
  } else {
    answer(contributor, round, actions);
  }
}

Error SyncAggregator::left_error(std::uint32_t contributor) const {
  return make_error(
      ErrorCode::configuration,
      describe(open_) + " can never complete: " + describe_rank(contributor) + " has left the job",
      "let all ranks push the same number of rounds before one closes its client");
}

Error SyncAggregator::memory_error(Round round) const {
  return make_error(
      ErrorCode::out_of_memory,
      describe(round) + ": the server cannot allocate " + std::to_string(shape_.slot_bytes()) + " bytes",
      "give the server a smaller --memory-max than the machine has, or add servers");
}

void SyncAggregator::unpin(std::uint32_t pin, Actions& actions) {
  BPS_ASSERT(pin < slots_.size() && slots_[pin].pins > 0);
  if (--slots_[pin].pins > 0) return;
  release_stale_slots();
  if (pin == open_.value % 2) advance(actions);
}

}  // namespace bps

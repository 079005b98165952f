#include "server/aggregate/sync_aggregator.h"

#include <algorithm>

#include "proto/base/assert.h"

namespace bps {
namespace {

// Ranks that are asked before their turn: enough to hide a round trip, few enough to be in cache still when
// they are added.
constexpr std::uint32_t kAskedAhead = 16;

}  // namespace

SyncAggregator::SyncAggregator(PartitionShape shape, std::span<const Contributor> contributors,
                               AggregatorMemory memory, PartitionMemory own)
    : Aggregator(std::move(shape), contributors, memory),
      states_(contributors.size()),
      slots_(shape_.mode == Mode::slot ? RoundSlots(*memory.calls, memory.owner, shape_.raw_bytes())
                                       : RoundSlots(memory.slots, shape_.raw_bytes(), std::move(own.slot))),
      terms_(shape_, contributors_, errors_),
      sum_(shape_, contributors_, memory_, slots_),
      last_(shape_, contributors_, errors_) {
  if (shape_.moved) handoff_ = std::make_unique<RoundHandoff>(contributors.size());
}

// ---- arrivals ----

Destination SyncAggregator::begin(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes,
                                  Actions& actions) {
  State& state = states_[contributor];
  if (handoff_ != nullptr) {
    BPS_ASSERT(state.arrival == Arrival::none);
    state.round = header.round;
    state.arrival = header.rendezvous ? Arrival::resumes_rendezvous : Arrival::resumes;
    return Destination{};
  }
  if (!wants(contributor, header, bytes, actions)) {
    if (state.arrival != Arrival::again) return Destination{};
    return Destination{Destination::Kind::memory, slots_.memory(header.round)};
  }
  if (header.rendezvous && sum_.gives(contributor)) {
    state.arrival = Arrival::rendezvous;
    return Destination{};
  }
  return place(contributor);
}

bool SyncAggregator::lend(std::uint32_t contributor, const PushPull& header, LentPayload& payload,
                          Actions& actions) {
  if (handoff_ != nullptr || (is_last(header.round) && last_.may_want_from(contributor))) return false;
  // A scarce one cannot wait here.
  if (payload.scarce() && !is_turn(contributor, header)) return false;
  if (!wants(contributor, header, payload.bytes().size(), actions)) {
    payload.reset();
    end(contributor, nullptr, actions);
    return true;
  }
  sum_.take_lent(contributor, std::move(payload));
  advance(actions);
  // Left over from a sum that was spoiled.
  if (const LentPayload kept = sum_.take_back_scarce(contributor)) {
    if (kept.intact()) set_aside(contributor, kept.bytes().data(), actions);
    if (!kept.intact()) sum_.forget(contributor);
  }
  return true;
}

bool SyncAggregator::wants(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes,
                           Actions& actions) {
  State& state = states_[contributor];
  BPS_ASSERT(state.arrival == Arrival::none);
  state.round = header.round;
  if (is_last(header.round) && !last_.is_over(contributor)) {
    state.arrival = again(contributor, header, bytes, actions);
    return false;
  }
  if (header.round != open_) {
    state.arrival = Arrival::refused;
    refusals_.insert_or_assign(contributor, terms_.out_of_turn(contributor, header.round, open_));
    return false;
  }
  note_over(contributor, actions);
  if (Status agreed = agree(contributor, header, bytes); !agreed) {
    // The error becomes the result of the round, and that of this contributor when its payload is over.
    fail_round(agreed.error(), actions);
    state.arrival = Arrival::retained;
    return false;
  }
  state.awaiting = true;
  if (sum_.is_here(contributor)) {
    state.arrival = Arrival::duplicate;
    return false;
  }
  return true;
}

SyncAggregator::Arrival SyncAggregator::again(std::uint32_t contributor, const PushPull& header,
                                              std::uint64_t bytes, Actions& actions) {
  if (last_.is_unknown()) last_.recall(header.call, header.round);
  release_stale_slots();  // perhaps nobody lacks its bytes
  if (!last_.wants_from(contributor)) return Arrival::retained;
  if (header.rendezvous) return Arrival::again_rendezvous;
  Error error = header.error;
  if (error.code == ErrorCode::ok && bytes != shape_.bytes_of(header.count))
    error = errors_.length(contributor, header.round, bytes, shape_.bytes_of(header.count));
  if (error.code != ErrorCode::ok) {
    last_.give_up(std::move(error));
    reply_to_waiting(actions);
    return Arrival::retained;
  }
  if (slots_.take(header.round, true) == nullptr) return Arrival::again_no_room;
  slots_.pin_to_write(header.round);
  slots_.set_aggregate(header.round, bytes);
  return Arrival::again;
}

Status SyncAggregator::agree(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes) {
  if (!begun_) {
    begun_ = true;
    sum_.open(open_, shape_.in_partition(header.call), shape_.elements_of(header.count));
    if (Status may_open = terms_.open(contributor, header); !may_open) return may_open;
  }
  if (header.error.code != ErrorCode::ok) return header.error;
  if (Status agreed = terms_.agree(contributor, header); !agreed) return agreed;
  if (!header.scale.is_none() && !terms_.has_bad_scale(contributor))
    sum_.set_scale(contributor, header.scale);
  if (header.rendezvous || bytes == sum_.bytes_from(contributor)) return {};
  return errors_.length(contributor, open_, bytes, sum_.bytes_from(contributor));
}

bool SyncAggregator::is_turn(std::uint32_t contributor, const PushPull& header) {
  if (header.round != open_) return false;
  const RoundCall call = shape_.in_partition(header.call);
  if (call.is_broadcast()) return contributors_[contributor].holds(call.root) && has_slot();
  if (call.is_copy()) return has_slot();
  if (!sum_.is_next(contributor) || !has_slot()) return false;
  return sum_.lands_in_slot(contributor) || can_add(contributor);
}

bool SyncAggregator::is_announced() {
  const auto is_here = [&](std::uint32_t i) {
    return states_[i].awaiting || sum_.is_here(i) || sum_.is_absent(i) || terms_.has_dropped(i);
  };
  while (announced_ < states_.size() && is_here(announced_))
    ++announced_;
  return announced_ == states_.size();
}

bool SyncAggregator::has_slot() {
  if (is_slot_taken()) return false;
  starved_ = slots_.take(open_, slots_.is_pooled() && is_announced()) == nullptr;
  return !starved_;
}

Destination SyncAggregator::place(std::uint32_t contributor) {
  State& state = states_[contributor];
  if (!sum_.gives(contributor)) {
    state.arrival = Arrival::empty;
    return Destination{};
  }
  const bool to_slot = sum_.lands_in_slot(contributor);
  if (to_slot && has_slot()) {
    sum_.drop(contributor);
    state.arrival = Arrival::slot;
    slots_.pin_to_write(open_);
    return Destination{Destination::Kind::memory, sum_.place(contributor)};
  }
  if (!sum_.is_copy() && !to_slot && sum_.is_next(contributor) && has_slot() && can_add(contributor)) {
    sum_.drop(contributor);
    state.arrival = Arrival::lane;
    return Destination{Destination::Kind::lane, nullptr};
  }
  std::byte* const room = sum_.make_room(contributor);
  if (room == nullptr) {
    state.arrival = Arrival::no_room;
    return Destination{};
  }
  state.arrival = Arrival::waiting;
  return Destination{Destination::Kind::memory, room};
}

void SyncAggregator::end(std::uint32_t contributor, const std::byte* lane_buffer, Actions& actions) {
  State& state = states_[contributor];
  const Arrival arrival = state.arrival;
  BPS_ASSERT(arrival != Arrival::none);
  if (arrival == Arrival::refused) {
    state.arrival = Arrival::none;
    Error refusal = std::move(refusals_.extract(contributor).mapped());
    return emit(actions, Action::Kind::failed, contributor, state.round, std::move(refusal));
  }
  if (arrival == Arrival::resumes || arrival == Arrival::resumes_rendezvous)
    return end_in_handoff(contributor, actions);
  if (arrival == Arrival::again || arrival == Arrival::again_rendezvous || arrival == Arrival::again_no_room)
    return end_again(contributor, actions);
  if (arrival == Arrival::retained || state.round != open_) {
    // Over meanwhile: complete before it was sent again, or failed while it was arriving.
    release_arrival(contributor);
    reply_last(contributor, state.round, actions);
    advance(actions);
    return;
  }
  state.arrival = Arrival::none;
  switch (arrival) {
    case Arrival::slot:
      slots_.unpin_written(open_);
      sum_.take_from_slot(contributor);
      return advance(actions);
    case Arrival::lane:
      // A partition without elements has no payload, but its turn in the order all the same.
      return end_lane(contributor, lane_buffer != nullptr ? lane_buffer : &kEmptyPayload, actions);
    case Arrival::waiting: sum_.take_from_room(contributor); return advance(actions);
    case Arrival::empty: sum_.take_nothing(contributor); return advance(actions);
    case Arrival::rendezvous: sum_.refuse(contributor); break;
    case Arrival::no_room:
      sum_.refuse(contributor);
      emit(actions, Action::Kind::not_ready, contributor, open_);
      break;
    default: break;  // a duplicate, which may have been lost with a spoiled sum meanwhile
  }
  // Its header may have been the last one that the other slot was kept for, or accumulators, or an error.
  if (waits() || terms_.lacked(sum_) != kNobody) return advance(actions);
  recall(actions);
}

void SyncAggregator::end_again(std::uint32_t contributor, Actions& actions) {
  const Arrival arrival = states_[contributor].arrival;
  const Round round = states_[contributor].round;
  release_arrival(contributor);
  if (is_last(round) && last_.wants_from(contributor)) {
    if (arrival != Arrival::again) {
      if (arrival == Arrival::again_no_room) emit(actions, Action::Kind::not_ready, contributor, round);
      gives_again_ = contributor;
      return ask_again(actions);
    }
    last_.give();
    reply_to_waiting(actions);
  }
  reply_last(contributor, round, actions);
  advance(actions);
}

void SyncAggregator::ask_again(Actions& actions) {
  if (gives_again_ == kNobody || slots_.take(last(), true) == nullptr) return;
  emit(actions, Action::Kind::clear_to_send, std::exchange(gives_again_, kNobody), last());
}

void SyncAggregator::end_lane(std::uint32_t contributor, const std::byte* lane_buffer, Actions& actions) {
  sum_.take_from_lane(contributor, lane_buffer);
  advance(actions);
  // Not its turn any more: one before it was lent, and withdrawn. Or there are no accumulators.
  if (sum_.release_lane(contributor)) set_aside(contributor, lane_buffer, actions);
}

void SyncAggregator::set_aside(std::uint32_t contributor, const std::byte* bytes, Actions& actions) {
  if (sum_.set_aside(contributor, bytes)) return;
  emit(actions, Action::Kind::not_ready, contributor, open_);
  recall(actions);
}

void SyncAggregator::release_arrival(std::uint32_t contributor) {
  State& state = states_[contributor];
  if (state.arrival == Arrival::slot || state.arrival == Arrival::again) {
    slots_.unpin_written(state.round);
    release_stale_slots();
  }
  if (state.arrival == Arrival::waiting) sum_.drop(contributor);
  state.arrival = Arrival::none;
}

// ---- the sum ----

void SyncAggregator::advance(Actions& actions) {
  while (begun_) {
    const std::uint32_t lacked = terms_.lacked(sum_);
    if (lacked != kNobody && is_announced())
      return fail_round(errors_.left(lacked, open_, terms_.number()), actions);
    const RoundSum::Progress progress = sum_.add(is_announced());
    starved_ = starved_ || progress.no_slot;
    if (progress.spoiled == 0) return sum_.is_complete() ? complete(actions) : recall(actions);
    ask_for_spoiled(progress.spoiled, actions);
  }
}

void SyncAggregator::advance_starved(Actions& actions) {
  if (waits()) advance(actions);
}

void SyncAggregator::ask_for_spoiled(std::uint32_t spoiled, Actions& actions) {
  announced_ = 0;  // what was here of those whose lanes are lost is not here any more
  for (std::uint32_t i = 0; i < spoiled; ++i) {
    const State& state = states_[i];
    if (state.dead || sum_.is_skipped(i)) continue;
    if (terms_.has_left(i) && !terms_.has_dropped(i))
      return fail_round(errors_.left(i, open_, terms_.number()), actions);
    if (!state.awaiting) continue;
    sum_.refuse(i);
    emit(actions, Action::Kind::not_ready, i, open_);
  }
}

void SyncAggregator::recall(Actions& actions) {
  if (!begun_) return;
  const auto count = static_cast<std::uint32_t>(states_.size());
  const std::uint32_t ready = sum_.ready();
  const std::uint32_t lowest = sum_.present_from(0);
  // What belongs into the slot needs no budget once the slot is free.
  if (sum_.is_copy()) {
    const bool may_ask = sum_.has_refused() && may_have_slot();
    if (may_ask) sum_.forget_refused();
    for (std::uint32_t i = 0; may_ask && i < count; ++i)
      if (sum_.lands_in_slot(i) && is_to_be_asked(i)) ask(i, actions);
    return;
  }
  if (ready <= lowest) {
    if (lowest < count && is_to_be_asked(lowest) && may_have_slot()) ask(lowest, actions);
    return;
  }
  // The next one goes through its lane's buffer. Those close behind it are asked as far as there is room, so
  // that they need not come one round trip after the other.
  for (std::uint32_t i = ready; i < std::min(count, ready + kAskedAhead); ++i) {
    if (!is_to_be_asked(i)) continue;
    const bool with_room = i > ready || !may_have_slot() || !can_add(i);
    if (with_room && sum_.make_room(i) == nullptr) return;
    ask(i, actions);
  }
}

bool SyncAggregator::is_to_be_asked(std::uint32_t contributor) const {
  return sum_.phase(contributor) == RoundSum::Phase::not_ready &&
         states_[contributor].arrival == Arrival::none;
}

void SyncAggregator::ask(std::uint32_t contributor, Actions& actions) {
  sum_.ask(contributor);
  emit(actions, Action::Kind::clear_to_send, contributor, open_);
}

// ---- what comes of it ----

void SyncAggregator::complete(Actions& actions) {
  // Not before all have come: nobody is to miss the round before because this one is over at once.
  if (Status may = terms_.may_complete(open_, sum_); !may) return fail_round(may.error(), actions);
  last_.complete(terms_.call(), sum_.root(), sum_.weight());
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    const bool asks = states_[i].awaiting && states_[i].arrival == Arrival::none;
    if (asks) reply(i, open_, last_.ask(i), actions);
  }
  close_round();
}

void SyncAggregator::fail_round(Error error, Actions& actions) {
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    // What is arriving, or has been asked for and will arrive, is answered at its end.
    if (!state.awaiting || state.arrival != Arrival::none) continue;
    if (sum_.phase(i) == RoundSum::Phase::cleared) continue;
    emit(actions, Action::Kind::failed, i, open_, error);
  }
  terms_.note_failed(error);
  // Others have gone on without those that are still in the round before.
  last_.give_up(error);
  reply_to_waiting(actions);
  last_.fail(std::move(error));
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    if (states_[i].arrival != Arrival::waiting) sum_.drop(i);
  }
  close_round();
}

void SyncAggregator::close_round() {
  for (State& state : states_)
    state.awaiting = false;
  slots_.end_writing();
  open_ = open_.next();
  begun_ = false;
  starved_ = false;
  announced_ = 0;
  sum_.close();
  gives_again_ = kNobody;
  release_stale_slots();
}

void SyncAggregator::release_stale_slots() {
  const bool is_pooled = slots_.is_pooled();
  // From a pool it is kept until the round is over: it may have waited for it.
  const bool is_kept = is_pooled ? begun_ && slots_.is_claimed(open_) : sum_.has_begun();
  if (!is_kept) slots_.release(open_);
  // What a connection read when the round before took none.
  const bool is_older = is_pooled && !slots_.is_claimed(last());
  if (is_older || last_.is_stored() || last_.has_failed()) slots_.release(open_.next());
}

void SyncAggregator::reply(std::uint32_t contributor, Round round, LastRound::Reply reply, Actions& actions) {
  if (reply == LastRound::Reply::nothing) return;
  if (reply == LastRound::Reply::failed)
    return emit(actions, Action::Kind::failed, contributor, round, last_.error());
  emit(actions, Action::Kind::answer, contributor, round);
  Action& action = actions.back();
  action.weight = last_.weight();
  if (reply == LastRound::Reply::end || slots_.aggregate(round).empty()) return;
  slots_.pin(round);
  attach(action, slots_.buffer(round), slots_.aggregate(round), RoundSlots::number_of(round));
}

void SyncAggregator::reply_last(std::uint32_t contributor, Round round, Actions& actions) {
  if (is_last(round) && !last_.is_over(contributor))
    return reply(contributor, round, last_.ask(contributor), actions);
  emit(actions, Action::Kind::failed, contributor, round, terms_.out_of_turn(contributor, round, open_));
}

void SyncAggregator::reply_to_waiting(Actions& actions) {
  last_.reply_to_waiting([&](std::uint32_t i, LastRound::Reply what) { reply(i, last(), what, actions); });
  if (gives_again_ != kNobody && !last_.wants_from(gives_again_)) {
    const std::uint32_t giver = std::exchange(gives_again_, kNobody);
    if (!last_.is_over(giver)) reply(giver, last(), last_.ask(giver), actions);
  }
  release_stale_slots();
}

void SyncAggregator::stored(std::uint32_t contributor, Round round, Actions& actions) {
  if (handoff_ != nullptr || !is_last(round) || !last_.note_stored(contributor)) return;
  reply_to_waiting(actions);
  advance_starved(actions);
}

void SyncAggregator::note_over(std::uint32_t contributor, Actions& actions) {
  if (last_.note_over(contributor)) reply_to_waiting(actions);
}

void SyncAggregator::note_gone(std::uint32_t contributor, Actions& actions) {
  if (last_.note_gone(contributor, last())) reply_to_waiting(actions);
}

void SyncAggregator::unpin(std::uint32_t pin, Actions& actions) {
  if (!slots_.unpin(pin)) return;
  release_stale_slots();
  if (starved_ || pin == RoundSlots::number_of(open_)) advance(actions);
}

bool SyncAggregator::open_state(OpenState& out) const {
  out.absent.clear();
  if (handoff_ != nullptr) {
    out.stage = RoundStage::resume;
    out.round = handoff_->highest();
    handoff_->name_absent(out.absent);
  } else if (last_.is_waited_for()) {
    out.stage = RoundStage::store;
    out.round = last();
    last_.name_absent(out.absent);
  } else {
    out.stage = RoundStage::push;
    out.round = open_;
    sum_.name_absent(out.absent);
  }
  return handoff_ != nullptr || last_.is_waited_for() || begun_;
}

// ---- contributors that go ----

void SyncAggregator::lost(std::uint32_t contributor, Actions& actions) {
  State& state = states_[contributor];
  refusals_.erase(contributor);
  release_arrival(contributor);
  sum_.lose(contributor);
  state.awaiting = false;
  last_.lost(contributor);
  if (gives_again_ == contributor) gives_again_ = kNobody;
  announced_ = std::min(announced_, contributor);
  if (handoff_ != nullptr) return lost_in_handoff(contributor, actions);
  advance(actions);
}

void SyncAggregator::left(std::uint32_t contributor, Actions& actions) {
  if (terms_.has_left(contributor)) return;
  terms_.set_left(contributor, true);
  note_gone(contributor, actions);
  if (handoff_ != nullptr) return approach(actions);
  if (terms_.has_dropped(contributor)) return advance(actions);
  if (!begun_ || sum_.is_here(contributor)) return advance_starved(actions);
  fail_round(errors_.left(contributor, open_, terms_.number()), actions);
}

void SyncAggregator::gone(std::uint32_t contributor, Actions& actions) {
  if (handoff_ == nullptr) return;
  handoff_->gone(contributor);
  approach(actions);
}

void SyncAggregator::died(std::uint32_t contributor, Actions& actions) {
  State& state = states_[contributor];
  if (state.dead) return;
  state.dead = true;
  terms_.set_left(contributor, false);
  note_gone(contributor, actions);
  const bool is_absent = sum_.die(contributor);
  if (handoff_ != nullptr) {
    handoff_->died(contributor);
    return approach(actions);
  }
  if (is_absent || waits()) advance(actions);
}

// A worker may wait for what it has lent, while others keep the answer that they were lent until they have a
// later one. Memory of a pool is needed by others.
void SyncAggregator::let_go() {
  const auto dropped = [] { return make_error(ErrorCode::cancelled, "the tensor was dropped"); };
  Actions unheard;
  if (handoff_ != nullptr) {
    if (slots_.is_pooled()) slots_.release(handoff_->asked_round());
  } else if (begun_) {
    fail_round(dropped(), unheard);
  } else if (slots_.is_pooled()) {
    last_.give_up(dropped());
    reply_to_waiting(unheard);
  }
}

void SyncAggregator::on_memory(Actions& actions) {
  if (handoff_ != nullptr) return fetch(actions);
  ask_again(actions);
  advance(actions);
}

}  // namespace bps

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
      slots_(memory.slots, shape_.raw_bytes(), std::move(own.slot)),
      terms_(shape_, contributors_, errors_),
      sum_(shape_, contributors_, memory_, slots_) {
  last_.unstored = static_cast<std::uint32_t>(contributors.size());
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
  if (!wants(contributor, header, bytes, actions)) return Destination{};
  if (header.rendezvous) {
    state.arrival = Arrival::rendezvous;
    return Destination{};
  }
  return place(contributor, bytes);
}

bool SyncAggregator::lend(std::uint32_t contributor, const PushPull& header, LentPayload& payload,
                          Actions& actions) {
  if (handoff_ != nullptr) return false;
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
  if (is_last(header.round) && !state.stored) {
    state.arrival = Arrival::retained;
    return false;
  }
  if (header.round != open_) {
    refuse(contributor, out_of_turn(contributor, header.round));
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
  if (sum_.is_here(contributor)) {
    state.arrival = Arrival::duplicate;
    return false;
  }
  return true;
}

Status SyncAggregator::agree(std::uint32_t contributor, const PushPull& header, std::uint64_t bytes) {
  if (!begun_) {
    begun_ = true;
    terms_.open(contributor, header);
    sum_.open(open_, header.call);
    if (parted_.code != ErrorCode::ok) return parted_;
    if (const std::uint32_t gone = first_left(); gone < states_.size()) return errors_.left(gone, open_);
  }
  if (header.error.code != ErrorCode::ok) return header.error;
  if (Status agreed = terms_.agree(contributor, header); !agreed) return agreed;
  const bool is_empty = sum_.is_broadcast() && !sum_.is_root(contributor);
  const std::size_t expected = is_empty ? 0 : shape_.raw_bytes();
  if (header.rendezvous || bytes == expected) return {};
  return errors_.length(contributor, open_, bytes, expected);
}

bool SyncAggregator::is_turn(std::uint32_t contributor, const PushPull& header) {
  if (header.round != open_) return false;
  const RoundCall& call = header.call;
  if (call.is_broadcast()) return contributors_[contributor].holds(call.root) && has_slot();
  if (!sum_.is_next(contributor) || !has_slot()) return false;
  return sum_.lands_in_slot(contributor) || can_add(contributor);
}

bool SyncAggregator::is_announced() {
  const auto is_here = [&](std::uint32_t i) {
    return states_[i].awaiting || sum_.is_here(i) || sum_.is_absent(i);
  };
  while (announced_ < states_.size() && is_here(announced_))
    ++announced_;
  return announced_ == states_.size();
}

bool SyncAggregator::has_slot() {
  if (slots_.is_pinned(open_)) return false;
  starved_ = slots_.memory(open_) == nullptr;
  return !starved_;
}

bool SyncAggregator::may_have_slot() { return starved_ ? has_slot() : !slots_.is_pinned(open_); }

Destination SyncAggregator::place(std::uint32_t contributor, std::uint64_t bytes) {
  State& state = states_[contributor];
  const bool broadcast = sum_.is_broadcast();
  const bool to_slot = sum_.lands_in_slot(contributor);
  if (bytes == 0 && broadcast && !to_slot) {
    state.arrival = Arrival::empty;
    return Destination{};
  }
  if (to_slot && has_slot()) {
    sum_.drop(contributor);
    state.arrival = Arrival::slot;
    slots_.pin(open_);
    return Destination{Destination::Kind::memory, slots_.memory(open_)};
  }
  if (!broadcast && !to_slot && sum_.is_next(contributor) && has_slot() && can_add(contributor)) {
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

void SyncAggregator::refuse(std::uint32_t contributor, Error error) {
  refusals_.emplace_back(contributor, std::move(error));
  states_[contributor].arrival = Arrival::refused;
}

// Once a rank has left, each round fails as soon as it is opened: the ranks are not in step any more, and
// that is no fault of theirs.
Error SyncAggregator::out_of_turn(std::uint32_t contributor, Round round) const {
  if (parted_.code != ErrorCode::ok) return parted_;
  const std::uint32_t gone = first_left();
  return gone < states_.size() ? errors_.left(gone, round) : errors_.order(contributor, round, open_);
}

std::uint32_t SyncAggregator::first_left() const {
  const auto gone = std::find_if(states_.begin(), states_.end(), [](const State& s) { return s.left; });
  return static_cast<std::uint32_t>(gone - states_.begin());
}

void SyncAggregator::end(std::uint32_t contributor, const std::byte* lane_buffer, Actions& actions) {
  State& state = states_[contributor];
  const Arrival arrival = state.arrival;
  BPS_ASSERT(arrival != Arrival::none);
  if (arrival == Arrival::refused) return end_refused(contributor, actions);
  if (arrival == Arrival::resumes || arrival == Arrival::resumes_rendezvous) {
    return end_in_handoff(contributor, actions);
  }
  if (arrival == Arrival::retained || state.round != open_) {
    // Over meanwhile: complete before it was sent again, or failed while it was arriving.
    release_arrival(contributor);
    reply_retained(contributor, state.round, actions);
    advance(actions);
    return;
  }
  state.arrival = Arrival::none;
  switch (arrival) {
    case Arrival::slot:
      slots_.unpin(open_);
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
  // Its header may have been the last one that the other slot was kept for, or accumulators.
  if (waits()) return advance(actions);
  recall(actions);
}

void SyncAggregator::end_refused(std::uint32_t contributor, Actions& actions) {
  const auto refusal = std::find_if(refusals_.begin(), refusals_.end(),
                                    [&](const auto& entry) { return entry.first == contributor; });
  BPS_ASSERT(refusal != refusals_.end());
  State& state = states_[contributor];
  emit(actions, Action::Kind::failed, contributor, state.round, std::move(refusal->second));
  refusals_.erase(refusal);
  state.arrival = Arrival::none;
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
  if (state.arrival == Arrival::slot) {
    slots_.unpin(state.round);
    release_stale_slots();
  }
  if (state.arrival == Arrival::waiting) sum_.drop(contributor);
  state.arrival = Arrival::none;
}

// ---- the sum ----

void SyncAggregator::advance(Actions& actions) {
  while (begun_) {
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
    if (state.dead) continue;
    if (state.left) return fail_round(errors_.left(i, open_), actions);
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
  if (sum_.is_broadcast() || ready <= lowest) {
    // Only what belongs into the slot can be waited for; it needs no budget once the slot is free.
    for (std::uint32_t i = 0; sum_.is_broadcast() && i < count; ++i) {
      if (sum_.is_root(i)) ask_for_slot(i, actions);
    }
    if (!sum_.is_broadcast() && lowest < count) ask_for_slot(lowest, actions);
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

void SyncAggregator::ask_for_slot(std::uint32_t contributor, Actions& actions) {
  if (is_to_be_asked(contributor) && may_have_slot()) ask(contributor, actions);
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
  const Round round = open_;
  const bool broadcast = sum_.is_broadcast();
  last_.error = {};
  last_.weight = broadcast ? 0 : sum_.weight();
  last_.root = kNobody;
  for (std::uint32_t i = 0; broadcast && i < states_.size(); ++i) {
    if (!sum_.is_root(i)) continue;
    // Not before all have come: nobody is to miss the round before because this one is over at once.
    if (sum_.is_absent(i)) return fail_round(errors_.root_lost(i, open_), actions);
    last_.root = i;
    last_.weight = contributors_[i].weight;
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
    if (!state.awaiting || state.arrival != Arrival::none) continue;
    if (sum_.phase(i) == RoundSum::Phase::cleared) continue;
    emit(actions, Action::Kind::failed, i, open_, error);
  }
  if (error.code == ErrorCode::configuration && parted_.code == ErrorCode::ok) parted_ = error;
  last_.error = std::move(error);
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    if (states_[i].arrival != Arrival::waiting) sum_.drop(i);
  }
  close_round();
}

void SyncAggregator::close_round() {
  last_.unstored = 0;
  for (State& state : states_) {
    state.awaiting = false;
    state.stored = state.left || state.dead;
    last_.unstored += state.stored ? 0 : 1;
  }
  open_ = open_.next();
  begun_ = false;
  starved_ = false;
  announced_ = 0;
  sum_.close();
  release_stale_slots();
}

void SyncAggregator::note_stored(std::uint32_t contributor) {
  State& state = states_[contributor];
  if (state.stored) return;
  state.stored = true;
  if (--last_.unstored == 0) release_stale_slots();
}

void SyncAggregator::release_stale_slots() {
  if (!sum_.has_begun()) slots_.release(open_);
  if (last_.unstored == 0 || last_.error.code != ErrorCode::ok) slots_.release(open_.next());
}

void SyncAggregator::answer(std::uint32_t contributor, Round round, Actions& actions) {
  emit(actions, Action::Kind::answer, contributor, round);
  Action& action = actions.back();
  action.weight = last_.weight;
  if (contributor == last_.root || shape_.raw_bytes() == 0) return;
  slots_.pin(round);
  attach(action, slots_.buffer(round), slots_.aggregate(round), RoundSlots::number_of(round));
}

void SyncAggregator::reply_retained(std::uint32_t contributor, Round round, Actions& actions) {
  const bool failed = last_.error.code != ErrorCode::ok;
  const bool kept = is_last(round) && (failed || slots_.has_memory(round));
  if (!kept) {
    emit(actions, Action::Kind::failed, contributor, round, out_of_turn(contributor, round));
  } else if (failed) {
    emit(actions, Action::Kind::failed, contributor, round, last_.error);
  } else {
    answer(contributor, round, actions);
  }
}

void SyncAggregator::unpin(std::uint32_t pin, Actions& actions) {
  if (!slots_.unpin(pin)) return;
  release_stale_slots();
  if (starved_ || pin == RoundSlots::number_of(open_)) advance(actions);
}

// Who was refused for lack of room has come; who has been asked to send again has not done so.
bool SyncAggregator::open_state(OpenState& out) const {
  out.absent.clear();
  out.resuming = handoff_ != nullptr;
  if (handoff_ == nullptr && !begun_) return false;
  out.round = handoff_ != nullptr ? handoff_->highest() : open_;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    const RoundSum::Phase phase = sum_.phase(i);
    const bool is_absent = handoff_ != nullptr
                               ? handoff_->waits_for(i)
                               : phase == RoundSum::Phase::none || phase == RoundSum::Phase::cleared;
    if (is_absent) out.absent.push_back(i);
  }
  return true;
}

// ---- contributors that go ----

void SyncAggregator::lost(std::uint32_t contributor, Actions& actions) {
  State& state = states_[contributor];
  if (state.arrival == Arrival::refused) {
    std::erase_if(refusals_, [&](const auto& entry) { return entry.first == contributor; });
  }
  release_arrival(contributor);
  sum_.lose(contributor);
  state.awaiting = false;
  announced_ = std::min(announced_, contributor);
  if (handoff_ != nullptr) return lost_in_handoff(contributor, actions);
  advance(actions);
}

void SyncAggregator::left(std::uint32_t contributor, Actions& actions) {
  State& state = states_[contributor];
  if (state.left) return;
  state.left = true;
  note_stored(contributor);
  if (handoff_ != nullptr) return approach(actions);
  if (!begun_ || sum_.is_here(contributor)) return advance_starved(actions);
  fail_round(errors_.left(contributor, open_), actions);
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
  state.left = false;  // it had dropped the tensor: now it is lost like others
  note_stored(contributor);
  const bool is_absent = sum_.die(contributor);
  if (handoff_ != nullptr) {
    handoff_->died(contributor);
    return approach(actions);
  }
  if (is_absent || waits()) advance(actions);
}

// A worker may wait for what it has lent, while others keep the answer that they were lent until they have a
// later one.
void SyncAggregator::let_go() {
  if (handoff_ != nullptr || !begun_) return;
  Actions unheard;
  fail_round(make_error(ErrorCode::cancelled, "the tensor was dropped"), unheard);
}

// ---- while the partition is in handoff ----

void SyncAggregator::resume(std::uint32_t contributor, const StoredRounds& stored, Actions& actions) {
  if (handoff_ != nullptr) return report(contributor, stored.round, false, actions);
  catch_up(contributor, stored.round, false, actions);
}

void SyncAggregator::end_in_handoff(std::uint32_t contributor, Actions& actions) {
  State& state = states_[contributor];
  const bool rendezvous = state.arrival == Arrival::resumes_rendezvous;
  state.arrival = Arrival::none;
  // Else it fails, or is answered.
  const bool waits = handoff_ != nullptr ? handoff_->allows(contributor, state.round) : state.round == open_;
  if (waits && !rendezvous) emit(actions, Action::Kind::not_ready, contributor, state.round);
  if (handoff_ != nullptr) return report(contributor, state.round, true, actions);
  // It had resumed before, and the others have done so meanwhile.
  catch_up(contributor, state.round, true, actions);
}

void SyncAggregator::report(std::uint32_t contributor, Round next, bool pushed, Actions& actions) {
  if (!handoff_->resume(contributor, StoredRounds{shape_.partition, next}, pushed)) {
    return emit(actions, Action::Kind::failed, contributor, next,
                errors_.order(contributor, next, handoff_->report(contributor).next));
  }
  approach(actions);
}

void SyncAggregator::lost_in_handoff(std::uint32_t contributor, Actions& actions) {
  const bool arriving = handoff_->is_arriving(contributor);
  if (!handoff_->lost(contributor)) return;
  if (arriving) {
    const Round last = handoff_->asked_round();
    if (slots_.is_pinned(last)) slots_.unpin(last);
    slots_.release(last);
  }
  approach(actions);
}

void SyncAggregator::approach(Actions& actions) {
  if (!handoff_->is_settled()) return;
  const Round open = handoff_->highest();
  bool lacking = false;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    const RoundHandoff::Report& report = handoff_->report(i);
    lacking = lacking || (report.named && report.next.next() == open && !states_[i].left);
  }
  if (!lacking) return end_handoff(actions);
  const Round last{open.value - 1};
  const RoundHandoff::Holders holders = handoff_->holders(
      [&](const RoundHandoff::Report& report) { return report.named && report.next == open; });
  if (holders.first != RoundHandoff::kNobody) {
    handoff_->ask(holders.first, last, 0);
    return emit(actions, Action::Kind::fetch, holders.first, last);
  }
  if (holders.may_return) return;
  // What the last one of them reported, if any was asked.
  const Error& reported = handoff_->result().error;
  last_.error = reported.code != ErrorCode::ok ? reported : errors_.nobody_has(last);
  end_handoff(actions);
}

Destination SyncAggregator::begin_retained(std::uint32_t contributor, const Retained& header,
                                           std::uint64_t bytes) {
  if (handoff_ == nullptr || !handoff_->begin(contributor, header, bytes, shape_.raw_bytes(), errors_))
    return Destination{};
  std::byte* const slot = slots_.memory(header.round);
  BPS_ASSERT(slot != nullptr);  // the other one is not used yet
  slots_.pin(header.round);
  return Destination{Destination::Kind::memory, slot};
}

void SyncAggregator::end_retained(std::uint32_t contributor, Actions& actions) {
  if (handoff_ == nullptr || !handoff_->is_arriving(contributor)) return;
  const Retained& result = handoff_->result();
  if (result.error.code == ErrorCode::internal) {
    handoff_->miss();
    return approach(actions);
  }
  last_.weight = result.weight;
  last_.error = result.error;
  if (last_.error.code == ErrorCode::configuration) parted_ = last_.error;
  if (last_.error.code == ErrorCode::ok) {
    slots_.unpin(result.round);
    slots_.set_aggregate(result.round, slots_.memory(result.round));
  }
  end_handoff(actions);
}

void SyncAggregator::end_handoff(Actions& actions) {
  const std::unique_ptr<RoundHandoff> handoff = std::move(handoff_);
  open_ = handoff->highest();
  last_.unstored = 0;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    // Who is further behind gets nothing here that it could use.
    State& state = states_[i];
    state.stored = state.left || state.dead || !is_last(handoff->report(i).next);
    last_.unstored += state.stored ? 0 : 1;
  }
  release_stale_slots();
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    const RoundHandoff::Report& report = handoff->report(i);
    if (report.here) catch_up(i, report.next, report.pushed, actions);
  }
}

void SyncAggregator::catch_up(std::uint32_t contributor, Round next, bool pushed, Actions& actions) {
  const State& state = states_[contributor];
  emit(actions, Action::Kind::resumed, contributor, open_);
  // What is arriving from it is answered when it is whole, by end_in_handoff().
  if (state.arrival == Arrival::resumes || state.arrival == Arrival::resumes_rendezvous) return;
  if (next == open_) {
    note_stored(contributor);
    advance_starved(actions);
    if (pushed) emit(actions, Action::Kind::clear_to_send, contributor, open_);
  } else if (is_last(next) && !state.stored) {
    reply_retained(contributor, next, actions);
  } else {
    emit(actions, Action::Kind::failed, contributor, next, out_of_turn(contributor, next));
  }
}

}  // namespace bps

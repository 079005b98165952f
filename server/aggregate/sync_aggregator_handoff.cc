// Of a SyncAggregator, what it does while its partition is in handoff.
#include <utility>

#include "proto/base/assert.h"
#include "server/aggregate/sync_aggregator.h"

namespace bps {

void SyncAggregator::resume(std::uint32_t contributor, const StoredRounds& stored, Actions& actions) {
  if (handoff_ != nullptr) return report(contributor, stored, false, actions);
  catch_up(contributor, stored.round, false, actions);
}

void SyncAggregator::end_in_handoff(std::uint32_t contributor, Actions& actions) {
  State& state = states_[contributor];
  const bool rendezvous = state.arrival == Arrival::resumes_rendezvous;
  state.arrival = Arrival::none;
  // Else it fails, or is answered.
  const bool waits = handoff_ != nullptr ? handoff_->allows(contributor, state.round)
                                         : state.round == open_ || is_again(contributor, state.round);
  if (waits && !rendezvous) emit(actions, Action::Kind::not_ready, contributor, state.round);
  if (handoff_ != nullptr) return report(contributor, {shape_.partition, state.round}, true, actions);
  // It had resumed before, and the others have done so meanwhile.
  catch_up(contributor, state.round, true, actions);
}

void SyncAggregator::report(std::uint32_t contributor, const StoredRounds& stored, bool pushed,
                            Actions& actions) {
  if (!handoff_->resume(contributor, stored, pushed)) {
    return emit(actions, Action::Kind::failed, contributor, stored.round,
                errors_.order(contributor, stored.round, handoff_->report(contributor).next));
  }
  approach(actions);
}

void SyncAggregator::lost_in_handoff(std::uint32_t contributor, Actions& actions) {
  const bool arriving = handoff_->is_arriving(contributor);
  if (!handoff_->lost(contributor)) return;
  const Round last = handoff_->asked_round();
  if (arriving && slots_.is_pinned(last)) slots_.unpin(last);
  slots_.release(last);
  fetches_ = false;
  approach(actions);
}

void SyncAggregator::approach(Actions& actions) {
  const Need need = handoff_->need_last(terms_.left());
  if (need == Need::patience) return;
  const Round last{handoff_->highest().value - 1};
  if (need == Need::result) {
    fetches_ = true;
    return fetch(actions);
  }
  if (need == Need::frames) last_.forget();
  if (need == Need::error) {
    // What the last one of them reported, if any was asked.
    const Error& reported = handoff_->result().error;
    last_.fail(reported.code != ErrorCode::ok ? reported : errors_.nobody_has(last));
  }
  end_handoff(actions);
}

void SyncAggregator::fetch(Actions& actions) {
  // One that has its own has memory: the other one is not used yet.
  if (!fetches_ || slots_.take(handoff_->asked_round(), true) == nullptr) return;
  fetches_ = false;
  emit(actions, Action::Kind::fetch, handoff_->asked(), handoff_->asked_round());
}

Destination SyncAggregator::begin_retained(std::uint32_t contributor, const Retained& header,
                                           std::uint64_t bytes) {
  if (handoff_ == nullptr || fetches_ || !handoff_->begin(contributor, header, bytes, shape_, errors_))
    return Destination{};
  std::byte* const slot = slots_.memory(header.round);
  BPS_ASSERT(slot != nullptr);
  slots_.pin(header.round);
  slots_.set_aggregate(header.round, bytes);
  return Destination{Destination::Kind::memory, slot};
}

void SyncAggregator::end_retained(std::uint32_t contributor, Actions& actions) {
  if (handoff_ == nullptr || !handoff_->is_arriving(contributor)) return;
  const Retained& result = handoff_->result();
  if (result.error.code == ErrorCode::internal) {
    handoff_->miss();
    return approach(actions);
  }
  terms_.note_failed(result.error);
  if (result.error.code != ErrorCode::ok) {
    last_.fail(result.error);
  } else {
    last_.fetched(result.weight);
    slots_.unpin(result.round);
    if (slots_.aggregate(result.round).empty()) slots_.release(result.round);
  }
  end_handoff(actions);
}

void SyncAggregator::end_handoff(Actions& actions) {
  fetches_ = false;
  const std::unique_ptr<RoundHandoff> handoff = std::move(handoff_);
  open_ = handoff->highest();
  // Who is further behind gets nothing here that it could use.
  last_.resume([&](std::uint32_t i) { return !is_last(handoff->report(i).next); });
  release_stale_slots();
  // Before the open round takes the only memory there may be.
  const bool may_give = last_.is_unknown() && !last_.is_stored();
  if (may_give && !slots_.is_pooled()) slots_.take(last(), true);
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
    note_over(contributor, actions);
    advance_starved(actions);
    if (pushed) emit(actions, Action::Kind::clear_to_send, contributor, open_);
  } else if (is_again(contributor, next)) {
    // It sends its frame of that round again.
    if (pushed) emit(actions, Action::Kind::clear_to_send, contributor, next);
  } else {
    reply_last(contributor, next, actions);
  }
}

}  // namespace bps

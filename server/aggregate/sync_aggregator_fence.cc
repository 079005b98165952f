// What happens on a partition that moved here before its first round: all say what they have, what somebody
// lacks is fetched, and the open round is known.
#include <algorithm>
#include <utility>

#include "proto/base/assert.h"
#include "server/aggregate/sync_aggregator.h"

namespace bps {

Round SyncAggregator::Fence::highest() const {
  Round round;
  for (const Report& report : reports) {
    if (report.named) round = std::max(round, report.next);
  }
  return round;
}

// ---- reports ----

void SyncAggregator::resume(std::uint32_t contributor, const StoredRounds& stored, Actions& actions) {
  if (fence_ != nullptr) return report(contributor, stored.round, false, actions);
  catch_up(contributor, stored.round, false, actions);
}

void SyncAggregator::end_fenced(std::uint32_t contributor, Actions& actions) {
  State& state = states_[contributor];
  const bool announced = state.arrival == Arrival::fenced_announced;
  state.arrival = Arrival::none;
  // Else it fails, or is answered.
  const Report* const known = fence_ != nullptr ? &fence_->reports[contributor] : nullptr;
  const bool waits = known == nullptr ? state.round == open_ : !known->named || known->next == state.round;
  if (waits && !announced) emit(actions, Action::Kind::later, contributor, state.round);
  if (fence_ != nullptr) return report(contributor, state.round, true, actions);
  // It had resumed before, and the others have done so meanwhile.
  catch_up(contributor, state.round, true, actions);
}

void SyncAggregator::report(std::uint32_t contributor, Round next, bool pushed, Actions& actions) {
  Report& report = fence_->reports[contributor];
  if (report.gone && !report.named) return;  // nobody has waited for it
  if (report.named && report.next != next) {
    return emit(actions, Action::Kind::failed, contributor, next,
                order_error(contributor, next, report.next));
  }
  report.here = true;
  report.pushed = report.pushed || pushed;
  report.next = next;
  if (!std::exchange(report.named, true) && !report.gone) --fence_->missing;
  approach(actions);
}

void SyncAggregator::lost_fenced(std::uint32_t contributor, Actions& actions) {
  Report& report = fence_->reports[contributor];
  report.here = false;
  report.pushed = false;
  if (fence_->asked != contributor) return;
  if (std::exchange(fence_->arriving, false)) {
    Slot& slot = slot_of(fence_->fetched);
    if (slot.pins > 0) --slot.pins;
    slot.memory.reset();
  }
  fence_->asked = kNobody;
  approach(actions);
}

// It has stored all that it wants. What it has named before still says which rounds are over.
void SyncAggregator::gone(std::uint32_t contributor, Actions& actions) {
  if (fence_ == nullptr) return;
  Report& report = fence_->reports[contributor];
  if (std::exchange(report.gone, true)) return;
  if (!report.named) --fence_->missing;
  approach(actions);
}

// ---- the result that some lack ----

void SyncAggregator::approach(Actions& actions) {
  if (fence_->missing > 0 || fence_->asked != kNobody) return;
  const Round open = fence_->highest();
  bool lacking = false;
  bool may_return = false;  // somebody who has it, on a new lane
  std::uint32_t holder = kNobody;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    const Report& report = fence_->reports[i];
    if (!report.named) continue;
    if (report.next == open) {
      if (report.lacks) continue;
      may_return = may_return || !report.gone;
      if (report.here && holder == kNobody) holder = i;
    } else if (report.next.next() == open && !states_[i].left) {
      lacking = true;
    }
  }
  if (!lacking) return lift(actions);
  const Round last{open.value - 1};
  if (holder != kNobody) {
    fence_->asked = holder;
    fence_->fetched = last;
    return emit(actions, Action::Kind::fetch, holder, last);
  }
  if (may_return) return;
  // What the last one of them said, if any was asked.
  last_error_ = fence_->error.code != ErrorCode::ok ? std::move(fence_->error) : nobody_has_error(last);
  lift(actions);
}

Destination SyncAggregator::begin_retained(std::uint32_t contributor, const Retained& header,
                                           std::uint64_t bytes) {
  if (fence_ == nullptr || fence_->asked != contributor || fence_->arriving) return Destination{};
  if (header.round != fence_->fetched) return Destination{};
  fence_->arriving = true;
  fence_->weight = header.weight;
  fence_->error = header.error;
  if (header.error.code != ErrorCode::ok) return Destination{};
  if (bytes != shape_.raw_bytes()) {
    fence_->error = length_error(contributor, header.round, bytes, shape_.raw_bytes());
    return Destination{};
  }
  Slot& slot = slot_of(header.round);
  slot.memory = allocate(memory_.slots, shape_.slot_bytes());
  if (!slot.memory) {
    fence_->error = memory_error(header.round);
    return Destination{};
  }
  ++slot.pins;
  return Destination{Destination::Kind::memory, slot.memory.data()};
}

void SyncAggregator::end_retained(std::uint32_t contributor, Actions& actions) {
  if (fence_ == nullptr || fence_->asked != contributor || !fence_->arriving) return;
  const Round last = fence_->fetched;
  if (fence_->error.code == ErrorCode::internal) {
    fence_->reports[contributor].lacks = true;
    fence_->arriving = false;
    fence_->asked = kNobody;
    return approach(actions);
  }
  last_weight_ = fence_->weight;
  last_error_ = std::move(fence_->error);
  if (last_error_.code == ErrorCode::ok) {
    Slot& slot = slot_of(last);
    --slot.pins;
    aggregate_[last.value % 2] = slot.memory.data();
  }
  lift(actions);
}

Error SyncAggregator::nobody_has_error(Round round) const {
  return make_error(
      ErrorCode::peer_lost,
      describe(round) + " is lost: its server is gone, and whoever has stored it has left the job",
      "close all clients only when the last round is over everywhere");
}

// ---- the end of it ----

void SyncAggregator::lift(Actions& actions) {
  const std::unique_ptr<Fence> fence = std::move(fence_);
  open_ = fence->highest();
  unstored_ = 0;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    // Who is further behind gets nothing here that it could use.
    const Report& report = fence->reports[i];
    states_[i].stored = states_[i].left || states_[i].dead || !is_last(report.next);
    unstored_ += states_[i].stored ? 0 : 1;
  }
  release_stale_slots();
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    const Report& report = fence->reports[i];
    if (report.here) catch_up(i, report.next, report.pushed, actions);
  }
}

void SyncAggregator::catch_up(std::uint32_t contributor, Round next, bool pushed, Actions& actions) {
  const State& state = states_[contributor];
  emit(actions, Action::Kind::resumed, contributor, open_);
  // What is arriving from it is answered when it is whole, by end_fenced().
  if (state.arrival == Arrival::fenced || state.arrival == Arrival::fenced_announced) return;
  if (next == open_) {
    note_stored(contributor);
    if (pushed) emit(actions, Action::Kind::again, contributor, open_);
  } else if (is_last(next) && !state.stored) {
    reply_retained(contributor, next, actions);
  } else {
    emit(actions, Action::Kind::failed, contributor, next, order_error(contributor, next, open_));
  }
}

}  // namespace bps

// What happens on an asynchronous partition that moved here: all say what they have, the newest value is
// fetched, and everyone goes on behind it (decision 0015).
#include <algorithm>
#include <utility>

#include "proto/base/assert.h"
#include "server/aggregate/async_aggregator.h"

namespace bps {

// ---- reports ----

void AsyncAggregator::resume(std::uint32_t contributor, const StoredRounds& stored, Actions& actions) {
  if (fence_ != nullptr) return report(contributor, stored, false, actions);
  catch_up(contributor, stored.round, false, actions);
}

void AsyncAggregator::end_fenced(std::uint32_t contributor, bool announced, Actions& actions) {
  const State& state = states_[contributor];
  const Report* const known = fence_ != nullptr ? &fence_->reports[contributor] : nullptr;
  const bool waits =
      known == nullptr ? state.arriving == state.next : !known->named || known->next == state.arriving;
  if (waits && !announced) emit(actions, Action::Kind::later, contributor, state.arriving);
  if (fence_ != nullptr) {
    return report(contributor, StoredRounds{shape_.partition, state.arriving}, true, actions);
  }
  // It had resumed before, and the others have done so meanwhile.
  catch_up(contributor, state.arriving, true, actions);
}

void AsyncAggregator::report(std::uint32_t contributor, const StoredRounds& stored, bool pushed,
                             Actions& actions) {
  Report& report = fence_->reports[contributor];
  if (report.gone && !report.named) return;  // nobody has waited for it
  if (report.named && report.next != stored.round) {
    return emit(actions, Action::Kind::failed, contributor, stored.round,
                order_error(contributor, stored.round, report.next));
  }
  report.here = true;
  report.pushed = report.pushed || pushed;
  report.next = stored.round;
  report.version = std::max(report.version, stored.version);
  report.broadcasts = std::max(report.broadcasts, stored.broadcasts);
  if (!std::exchange(report.named, true) && !report.gone) --fence_->missing;
  approach(actions);
}

void AsyncAggregator::lost_fenced(std::uint32_t contributor, Actions& actions) {
  Report& report = fence_->reports[contributor];
  report.here = false;
  report.pushed = false;
  if (fence_->asked != contributor) return;
  fence_->arriving = false;  // half a value is overwritten by the next one
  fence_->asked = kNobody;
  approach(actions);
}

void AsyncAggregator::gone(std::uint32_t contributor, Actions& actions) {
  if (fence_ == nullptr) return;
  Report& report = fence_->reports[contributor];
  if (std::exchange(report.gone, true)) return;
  if (!report.named) --fence_->missing;
  approach(actions);
}

// Nobody who lives has an answer that it alone had: it is as if it had never said a word.
void AsyncAggregator::died(std::uint32_t contributor, Actions& actions) {
  if (fence_ == nullptr) return left(contributor, actions);
  states_[contributor].left = true;
  Report& report = fence_->reports[contributor];
  if (!report.named && !report.gone) --fence_->missing;
  report = {};
  report.gone = true;
  approach(actions);
}

// ---- the newest value ----

void AsyncAggregator::approach(Actions& actions) {
  if (fence_->missing > 0 || fence_->asked != kNobody) return;
  std::uint64_t newest = 0;
  for (const Report& report : fence_->reports)
    newest = std::max(newest, report.version);
  change_ = newest;
  if (newest == 0) return lift(actions);
  bool may_return = false;  // somebody who has it, on a new lane
  std::uint32_t holder = kNobody;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    const Report& report = fence_->reports[i];
    if (report.version != newest || report.lacks) continue;
    may_return = may_return || !report.gone;
    if (report.here && holder == kNobody) holder = i;
  }
  if (holder != kNobody) {
    fence_->asked = holder;
    fence_->version = newest;
    emit(actions, Action::Kind::fetch, holder, Round{});
    actions.back().version = newest;
    return;
  }
  if (may_return) return;
  // What the last one of them said, if any was asked.
  lost_value_ =
      fence_->error.code != ErrorCode::ok
          ? std::move(fence_->error)
          : make_error(ErrorCode::peer_lost,
                       "the value of " + shape_.tensor + " (partition " +
                           std::to_string(shape_.partition.value) +
                           ") is lost: its server is gone, and whoever had the last answer has left "
                           "the job",
                       "broadcast the tensor again, or start the job from its last checkpoint");
  lift(actions);
}

Destination AsyncAggregator::begin_retained(std::uint32_t contributor, const Retained& header,
                                            std::uint64_t bytes) {
  if (fence_ == nullptr || fence_->asked != contributor || fence_->arriving) return Destination{};
  if (header.version != fence_->version) return Destination{};
  fence_->arriving = true;
  fence_->broadcasts = header.broadcasts;
  fence_->applied = header.applied;
  fence_->error = header.error;
  if (header.error.code != ErrorCode::ok) return Destination{};
  if (bytes != shape_.raw_bytes()) {
    fence_->error = length_error(contributor, header.round, bytes, shape_.raw_bytes());
    return Destination{};
  }
  if (!allocate_value()) {
    fence_->error =
        make_error(ErrorCode::out_of_memory,
                   "the server cannot allocate the value of " + shape_.tensor + ", which moved to it",
                   "give the server a smaller --memory-max than the machine has, or add servers");
    return Destination{};
  }
  return Destination{Destination::Kind::memory,
                     value_.data() + reduce::raw_offset(shape_.dtype, shape_.elements)};
}

void AsyncAggregator::end_retained(std::uint32_t contributor, Actions& actions) {
  if (fence_ == nullptr || fence_->asked != contributor || !fence_->arriving) return;
  if (fence_->error.code != ErrorCode::ok) {
    fence_->reports[contributor].lacks = true;
    fence_->arriving = false;
    fence_->asked = kNobody;
    return approach(actions);
  }
  reduce::widen_in_place(shape_.dtype, value_.data(), shape_.elements);
  has_value_ = true;
  broadcasts_ = fence_->broadcasts;
  lift(actions);
}

// ---- the end of it ----

void AsyncAggregator::lift(Actions& actions) {
  const std::unique_ptr<Fence> fence = std::move(fence_);
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    const Report& report = fence->reports[i];
    const std::uint32_t rank = contributors_[i].rank.value;
    const Round applied = has_value_ && rank < fence->applied.size() ? fence->applied[rank] : Round{};
    // A round that is over there and not in the value has failed.
    state.next = std::max(applied, report.next);
    state.broadcasts = report.broadcasts;
    state.elsewhere = true;
  }
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    const Report& report = fence->reports[i];
    if (report.here) catch_up(i, report.next, report.pushed, actions);
  }
}

void AsyncAggregator::catch_up(std::uint32_t contributor, Round next, bool pushed, Actions& actions) {
  const State& state = states_[contributor];
  emit(actions, Action::Kind::resumed, contributor, state.next);
  // What is arriving from it is answered when it is whole, by end_fenced().
  if (state.arrival == Arrival::fenced || state.arrival == Arrival::fenced_announced) return;
  const bool is_in_order = next == state.next || next.next() == state.next;
  if (!is_in_order) {
    emit(actions, Action::Kind::failed, contributor, next, order_error(contributor, next, state.next));
  } else if (pushed) {
    emit(actions, Action::Kind::again, contributor, next);
  }
}

}  // namespace bps

// Who is waited for, of both kinds of aggregators.
#include "server/aggregate/async_aggregator.h"
#include "server/aggregate/sync_aggregator.h"

namespace bps {

// Who was refused for lack of room has come; who has been asked to send again has not done so.
bool SyncAggregator::open_state(OpenState& out) const {
  out.absent.clear();
  out.resuming = fence_ != nullptr;
  if (fence_ == nullptr) {
    if (!begun_) return false;
    out.round = open_;
    for (std::uint32_t i = 0; i < states_.size(); ++i) {
      if (states_[i].phase == Phase::none || states_[i].phase == Phase::asked) out.absent.push_back(i);
    }
    return true;
  }
  out.round = fence_->highest();
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    const Report& report = fence_->reports[i];
    if ((!report.named && !report.gone) || fence_->asked == i) out.absent.push_back(i);
  }
  return true;
}

// The one that waits for the lowest round counts: for a broadcast, of the root that it named or of anybody;
// for the slowest ones otherwise.
bool AsyncAggregator::open_state(OpenState& out) const {
  out.absent.clear();
  out.resuming = fence_ != nullptr;
  if (fence_ != nullptr) {
    out.round = {};
    for (std::uint32_t i = 0; i < states_.size(); ++i) {
      const Report& report = fence_->reports[i];
      if (report.named) out.round = std::max(out.round, report.next);
      if ((!report.named && !report.gone) || fence_->asked == i) out.absent.push_back(i);
    }
    return true;
  }
  const State* waiting = nullptr;
  Round lowest;
  for (const State& state : states_) {
    const bool counted = state.phase == Phase::waiting && state.awaiting;
    const bool before_value = !has_value_ && (state.phase == Phase::whole || state.phase == Phase::later);
    if (!counted && !before_value) continue;
    const Round round{counted ? state.next.value - 1 : state.next.value};
    if (waiting != nullptr && round >= lowest) continue;
    waiting = &state;
    lowest = round;
  }
  if (waiting == nullptr) return false;
  out.round = lowest;
  const bool for_root = waiting->phase == Phase::waiting && waiting->last_operation == Operation::broadcast;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    if (state.left) continue;
    const bool absent = for_root ? contributors_[i].rank == waiting->root && waiting->broadcasts > broadcasts_
                        : !has_value_ ? state.phase == Phase::idle || state.phase == Phase::asked
                                      : shape_.staleness != kUnboundedStaleness &&
                                            state.next.value + shape_.staleness < waiting->next.value;
    if (absent) out.absent.push_back(i);
  }
  return true;
}

}  // namespace bps

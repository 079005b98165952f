// What becomes of a partition's rounds when a contributor is lost for good.
#include "server/aggregate/sync_aggregator.h"

namespace bps {

void SyncAggregator::died(std::uint32_t contributor, Actions& actions) {
  State& state = states_[contributor];
  if (state.dead || state.left) return;
  state.dead = true;
  ++dead_;
  live_weight_ -= contributors_[contributor].weight;
  note_stored(contributor);
  if (fence_ != nullptr) {
    // What it alone has nobody else will ever see: it is as if it had never said a word.
    Report& report = fence_->reports[contributor];
    if (!report.named && !report.gone) --fence_->missing;
    report = {};
    report.gone = true;
    make_absent(contributor);
    return approach(actions);
  }
  if (state.phase == Phase::whole || state.phase == Phase::added) return;
  make_absent(contributor);
  advance(actions);
}

void SyncAggregator::make_absent(std::uint32_t contributor) {
  State& state = states_[contributor];
  state.drop();
  state.phase = Phase::absent;
  ++absent_;
  total_weight_ -= contributors_[contributor].weight;
}

// Of the open round, and at least one.
bool SyncAggregator::all_added() const {
  if (absent_ == states_.size()) return false;
  return operation_ == Operation::broadcast ? added_ + absent_ == states_.size()
                                            : present_from(added_) == states_.size();
}

}  // namespace bps

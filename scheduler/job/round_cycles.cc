#include "scheduler/job/round_cycles.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace bps {

RoundCycles::RoundCycles(const OpenRounds& rounds, const FindTensor& find_tensor,
                         const std::optional<OpenBarrier>& barrier)
    : rounds_(rounds) {
  for (const OpenRound& round : rounds.rounds) {
    if (tensors_.count(round.tensor) == 0) tensors_.emplace(round.tensor, find_tensor(round.tensor));
    youngest_ms_ = std::min(youngest_ms_, round.age_ms);
    // Of partitions that are not open some are complete, or nobody has come to them yet.
    const std::vector<Rank>& busy = is_whole(round) ? round.partial : round.missing;
    busy_.insert(busy.begin(), busy.end());
  }
  if (barrier) {
    OpenRound all;
    all.missing = barrier->missing;
    barrier_ = std::make_shared<const OpenRound>(std::move(all));
    youngest_ms_ = std::min(youngest_ms_, barrier->age_ms);
    busy_.insert(barrier->lost.begin(), barrier->lost.end());
  }
  find_stuck();
}

bool RoundCycles::is_same(const OpenRound& a, const OpenRound& b) const {
  if (&a == barrier_.get() || &b == barrier_.get()) return &a == &b;
  return a.tensor == b.tensor && a.stage == b.stage;
}

// All partitions are in this round, and all who are missing are named.
bool RoundCycles::is_whole(const OpenRound& round) const {
  if (&round == barrier_.get()) return true;
  return round.stage == RoundStage::push && round.absent == round.missing.size() &&
         round.partitions == tensors_.at(round.tensor).partitions;
}

bool RoundCycles::waits_in(const OpenRound& round, Rank rank) const {
  const bool is_in = &round == barrier_.get() || tensors_.at(round.tensor).ranks.has(rank);
  return is_in && is_whole(round) && busy_.count(rank) == 0 &&
         !std::binary_search(round.missing.begin(), round.missing.end(), rank);
}

// Somebody whom the one waits for waits in the other.
bool RoundCycles::waits_for(const OpenRound& round, const OpenRound& other) const {
  return std::any_of(round.missing.begin(), round.missing.end(),
                     [&](Rank rank) { return waits_in(other, rank); });
}

const OpenRound* RoundCycles::oldest(Rank rank, const OpenRound* but) const {
  const OpenRound* oldest = nullptr;
  for (const OpenRound& other : rounds_.rounds) {
    const bool is_older = oldest == nullptr || other.age_ms > oldest->age_ms;
    const bool is_other = but == nullptr || !is_same(other, *but);
    if (is_older && is_other && waits_in(other, rank)) oldest = &other;
  }
  return oldest;
}

const OpenRound* RoundCycles::where_waits(Rank rank, const OpenRound& round) const {
  return oldest(rank, &round);
}

const OpenRound* RoundCycles::where_waits(Rank rank) const { return oldest(rank, nullptr); }

// Rounds none of whose missing ranks waits are taken away, one after the other: what is left then waits for
// what is left.
void RoundCycles::find_stuck() {
  if (rounds_.more != 0) return;
  for (const OpenRound& round : rounds_.rounds)
    stuck_.push_back(&round);
  if (barrier_ != nullptr) stuck_.push_back(barrier_.get());
  for (std::size_t before = 0; before != stuck_.size();) {
    before = stuck_.size();
    std::vector<const OpenRound*> waiting;
    std::copy_if(stuck_.begin(), stuck_.end(), std::back_inserter(waiting),
                 [this](const OpenRound* round) { return waits_for_stuck(*round); });
    stuck_ = std::move(waiting);
  }
}

bool RoundCycles::waits_for_stuck(const OpenRound& round) const {
  return std::any_of(stuck_.begin(), stuck_.end(), [&](const OpenRound* other) {
    return !is_same(*other, round) && waits_for(round, *other);
  });
}

std::uint64_t RoundCycles::age_ms(const OpenRound& round) const {
  return waits_for_stuck(round) ? youngest_ms_ : 0;
}

std::uint64_t RoundCycles::barrier_age_ms() const {
  return barrier_ != nullptr && waits_for_stuck(*barrier_) ? youngest_ms_ : 0;
}

}  // namespace bps

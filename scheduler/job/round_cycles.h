// Why ranks do not come to a round: they may wait for another one themselves, and in the end for those that
// wait for them. Then nobody goes on: rank 0 waits for b before it pushes a, rank 1 for a before it pushes b.
//
// A rank waits in a round that it has pushed and that is not complete. One that is in the middle of pushing
// any round is busy, and waits in none: ranks may push the same rounds in different orders. That a program
// does nothing else meanwhile nobody here knows; so how long nothing has begun is part of the answer, and
// what follows is for those who wait.
//
// Owner: WaitAnswers, for one answer. Pure. Where anything is not known (more rounds than are named, more
// missing ranks, a server that is silent) there is no cycle.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "proto/wire/messages.h"

namespace bps {

class RoundCycles {
 public:
  // `rounds`: of all tensors of a run, as OpenRoundList has them: ranks in growing order. Outlives this.
  // `partitions_of`: how many a tensor has.
  RoundCycles(const OpenRounds& rounds, std::function<std::uint64_t(TensorId)> partitions_of);

  // The oldest round that the rank waits in, beside `round`; null: none is known.
  const OpenRound* where_waits(Rank rank, const OpenRound& round) const;
  // If the round is part of a cycle, or leads to one: for how long no round of the run has begun. Else 0.
  std::uint64_t age_ms(const OpenRound& round) const;

 private:
  void find();
  bool waits_for_stuck(const OpenRound& round) const;
  bool is_whole(const OpenRound& round) const;
  bool waits_in(const OpenRound& round, Rank rank) const;
  bool waits_for(const OpenRound& round, const OpenRound& other) const;

  const OpenRounds& rounds_;
  const std::function<std::uint64_t(TensorId)> partitions_of_;
  std::set<Rank> busy_;
  std::uint64_t youngest_ms_ = UINT64_MAX;
  std::vector<const OpenRound*> stuck_;  // part of a cycle, or lead to one
};

}  // namespace bps

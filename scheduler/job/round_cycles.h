// Why ranks do not come to a round: they may wait for another one themselves, and in the end for those that
// wait for them. Then nobody goes on: rank 0 waits for b before it pushes a, rank 1 for a before it pushes b.
//
// A rank waits in a round that it has pushed and that is not complete, and at a barrier that it has arrived
// at. One that is in the middle of pushing any round is busy, and waits in none: ranks may push the same
// rounds in different orders. That a program does nothing else meanwhile nobody here knows; so how long
// nothing has begun is part of the answer, and what follows is for those who wait.
//
// Owner: WaitAnswers, for one answer. Pure. Where anything is not known (more rounds than are named, more
// missing ranks, a server that is silent) there is no cycle.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "proto/base/rank_list.h"
#include "proto/wire/messages.h"

namespace bps {

// The barrier that is open.
struct OpenBarrier {
  std::vector<Rank> missing;  // in growing order
  std::vector<Rank> lost;     // wait for nothing
  std::uint64_t age_ms = 0;   // since the last rank has arrived
};

class RoundCycles {
 public:
  struct Tensor {
    std::uint64_t partitions = 0;
    RankList ranks;  // that share it
  };
  using FindTensor = std::function<Tensor(TensorId)>;  // of one that is not known: no partitions

  // `rounds`: of all tensors of a run, as OpenRoundList has them: ranks in growing order. Outlives this.
  RoundCycles(const OpenRounds& rounds, const FindTensor& find_tensor,
              const std::optional<OpenBarrier>& barrier = std::nullopt);

  // The oldest round that the rank waits in, beside `round`; null: none is known.
  const OpenRound* where_waits(Rank rank, const OpenRound& round) const;
  // The oldest round that a rank that has not come to the barrier waits in; null: none is known.
  const OpenRound* where_waits(Rank rank) const;
  // If the round is part of a cycle, or leads to one: for how long no round of the run has begun, and nobody
  // has arrived at the barrier. Else 0.
  std::uint64_t age_ms(const OpenRound& round) const;
  std::uint64_t barrier_age_ms() const;  // the same of the barrier

 private:
  void find_stuck();
  const OpenRound* oldest(Rank rank, const OpenRound* but) const;
  bool waits_for_stuck(const OpenRound& round) const;
  bool is_same(const OpenRound& a, const OpenRound& b) const;
  bool is_whole(const OpenRound& round) const;
  bool waits_in(const OpenRound& round, Rank rank) const;
  bool waits_for(const OpenRound& round, const OpenRound& other) const;

  const OpenRounds& rounds_;
  std::map<TensorId, Tensor> tensors_;        // that have open rounds
  std::shared_ptr<const OpenRound> barrier_;  // like a round of all; null: none is open
  std::set<Rank> busy_;
  std::uint64_t youngest_ms_ = UINT64_MAX;
  std::vector<const OpenRound*> stuck_;  // part of a cycle, or lead to one
};

}  // namespace bps

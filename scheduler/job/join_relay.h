// Ranks of groups that have run out of data (decision 0042). A joined rank makes the others' calls with zeros
// until all ranks have joined. This class keeps the list of joined ranks, and forwards calls from the lowest
// rank that has not joined to the joined ranks.
//
//   RankJoined from one  -->  to all living ranks of the group; with the last of them it is over
//   CallsMade from one   -->  to those that have joined
//
// Owner: Job. Pure. It knows nothing after a scheduler's restart: workers whose join is under way then fail
// their group.
#pragma once

#include <map>
#include <set>

#include "proto/wire/messages.h"
#include "scheduler/job/run.h"
#include "scheduler/tensors/tensor_catalog.h"

namespace bps {

class JoinRelay {
 public:
  explicit JoinRelay(Run& run) : run_(run) {}

  // Of ranks that share the group, which is ready.
  void joined(Rank rank, const RankJoined& joined, const TensorCatalog& catalog);
  void made(const CallsMade& made);
  // A rank has left or is lost, so nobody waits for it any more; or a group has failed.
  void let_go(const TensorCatalog& catalog);
  // A rank has reported its failure, and all ranks are about to learn of it.
  void note_failing(TensorId group) { groups_[group].is_failing = true; }
  // The worker's connection is there again: it may have missed joins.
  void tell(const Worker& worker, const TensorCatalog& catalog) const;

 private:
  struct Group {
    std::map<Rank, RankJoined> joined;
    Rank last;
    std::uint64_t next = 0;  // above all calls that those were to make
    bool is_failing = false;
  };
  bool is_complete(const Group& group, const TensorCatalog::Tensor& tensor) const;
  void end(TensorId id, const Group& group, const TensorCatalog::Tensor& tensor) const;

  Run& run_;
  std::map<TensorId, Group> groups_;  // where one has joined and not all, or whose failure was reported
};

}  // namespace bps

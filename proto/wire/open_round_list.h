// What several partitions, shards or servers say about the open rounds of a job, put together per tensor.
//
// All partitions of a tensor are in the same operation, so only its oldest round counts: a worker that is
// missing anywhere is missing, and partly here if it is not missing everywhere. A tensor whose partitions
// have moved may stand here twice, for those that wait for workers to resume and for the others.
//
// Pure. Limits: kMaxMissingNamed ranks a tensor; take() gives kMaxWaitsNamed.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "proto/wire/messages.h"

namespace bps {

class OpenRoundList {
 public:
  void add(OpenRound round);
  // Those that somebody else has left out.
  void add_more(std::uint32_t more) { more_ += more; }

  // Those of at least this age, the oldest first; of equal age by tensor. Empties the list.
  OpenRounds take(std::uint64_t request, std::uint64_t older_than_ms = 0);

 private:
  std::map<std::pair<TensorId, RoundStage>, OpenRound> rounds_;
  std::uint32_t more_ = 0;
};

}  // namespace bps

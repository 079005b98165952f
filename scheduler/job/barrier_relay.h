// Between the barriers of a run and its workers: answers each Barrier once, with BarrierDone when all have
// arrived, or with an error when a rank has left before it.
//
// Owner: Job. Pure. A worker that arrives too far ahead is an error, and is dropped.
#pragma once

#include <cstdint>

#include "proto/base/result.h"
#include "scheduler/job/barriers.h"
#include "scheduler/job/run.h"

namespace bps {

class BarrierRelay {
 public:
  BarrierRelay(const Run& run, Barriers& barriers) : run_(run), barriers_(barriers) {}

  Status arrived(const Worker& worker, std::uint64_t number);
  // The rank comes to no later barrier: who waits there already gets the error.
  void left(Rank rank);
  // The rank is lost: nobody waits for it any more.
  void lost(Rank rank);

 private:
  void tell_done(std::uint64_t from) const;
  Error blocked_error(std::uint64_t number, Rank left) const;

  const Run& run_;
  Barriers& barriers_;
};

}  // namespace bps

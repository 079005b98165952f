// Compute that a timer plays: it takes its time and no CPU.
//
// The timeline is exact: a step ends when it should, however late the timer was noticed, so that lateness
// does not add up over hundreds of layers. One thread.
#pragma once

#include <cstdint>

#include "bench/engines/pace.h"
#include "proto/base/result.h"

namespace bps::bench {

class PlayedCompute {
 public:
  // The timeline begins now.
  void begin();
  void compute(double seconds) { at_ns_ += seconds * 1e9; }
  // What comes next needed something that has come only now.
  void stalled_until_now();
  // Returns when what has been computed so far is done.
  Status wait() { return pace_.wait_until(at_ns()); }

  std::int64_t begin_ns() const { return begin_ns_; }
  std::int64_t at_ns() const { return static_cast<std::int64_t>(at_ns_); }

 private:
  Pace pace_;
  std::int64_t begin_ns_ = 0;
  double at_ns_ = 0;  // not rounded from step to step
};

}  // namespace bps::bench

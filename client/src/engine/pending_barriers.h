// The barriers that this worker has come to, numbered in the order of its calls.
//
// Pure. Owner: ClientEngine. Lives on: client loop.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "proto/base/loop/event_loop.h"
#include "proto/base/result.h"
#include "proto/wire/messages.h"

namespace bps {

class PendingBarriers {
 public:
  using Done = std::function<void(Status)>;

  // Returns what the scheduler gets.
  Barrier arrive(Done done, TimePoint now);
  // Calls its `done`; one that is not known is ignored.
  void on_done(const BarrierDone& barrier);
  // Calls all that are pending.
  void fail(const Error& error);

  bool empty() const { return pending_.empty(); }
  std::uint64_t first_pending() const { return pending_.begin()->first; }
  struct Pending {
    std::uint64_t number = 0;
    TimePoint since;
  };
  std::vector<Pending> pending() const;
  std::uint64_t arrived() const { return next_; }  // so far
  std::uint64_t done() const { return done_; }     // the first ones, well

 private:
  std::uint64_t next_ = 0;
  std::uint64_t done_ = 0;
  struct Arrival {
    Done done;
    TimePoint since;
  };
  std::map<std::uint64_t, Arrival> pending_;
};

}  // namespace bps

// Since when the round of a partition is open: since the first contribution, or attempt at one, that named
// it. Rounds only grow; what names an older one says nothing new.
#pragma once

#include <optional>

#include "proto/base/ids.h"
#include "proto/base/loop/event_loop.h"

namespace bps {

class RoundClock {
 public:
  // Asks for the time only if the round is new.
  void named(Round round, const EventLoop& loop) {
    if (newest_ && round <= *newest_) return;
    newest_ = round;
    since_ = loop.now();
  }
  // The partition has come here, and nothing was named yet.
  void start(TimePoint now) { since_ = now; }

  Duration age(TimePoint now) const { return now - since_; }

 private:
  std::optional<Round> newest_;
  TimePoint since_;
};

}  // namespace bps

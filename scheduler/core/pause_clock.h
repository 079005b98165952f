// A process that was stopped, swapped out or starved has heard from nobody, and nobody is to blame: its own
// silence must not kill its peers. PauseClock is monotonic time without the owner's own pauses. The owner
// calls it regularly, with every event and at least once per `tick`; a gap much longer than that was a pause,
// and all of it but one tick is taken out. Deadlines measured on this clock so move by the pause, all of them
// and at once.
//
// Owner and loop: the core that it belongs to. Pure.
#pragma once

#include <optional>

#include "proto/base/loop/event_loop.h"

namespace bps {

class PauseClock {
 public:
  // Gaps of up to four ticks are jitter, not pauses.
  explicit PauseClock(Duration tick) : tick_(tick), tolerance_(4 * tick) {}

  TimePoint advance(TimePoint now) {
    if (last_ && now - *last_ > tolerance_) paused_ += now - *last_ - tick_;
    if (!last_ || now > *last_) last_ = now;
    return *last_ - paused_;
  }

  // The last time that it was told.
  TimePoint now() const { return last_ ? *last_ - paused_ : TimePoint{}; }

  Duration paused() const { return paused_; }

 private:
  Duration tick_;
  Duration tolerance_;
  std::optional<TimePoint> last_;
  Duration paused_{0};
};

}  // namespace bps

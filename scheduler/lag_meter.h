// How late the scheduler is: with its own timers, and with what has arrived. A timer runs between any two
// messages, so it says nothing of a queue of messages; for that, one connection at a time on which something
// waits to be read is watched until it is read.
//
// Owner: Scheduler. Pure: told the time. Limits: the worst of each ten seconds of the last minute.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "proto/base/loop/event_loop.h"
#include "scheduler/actions.h"

namespace bps {

class LagMeter {
 public:
  static constexpr Duration kWarned = std::chrono::seconds(1);
  static constexpr Duration kWarningPause = std::chrono::seconds(10);

  // A timer that was due at `due` runs now.
  void late(TimePoint due, TimePoint now) { note(now - due, now); }

  const std::optional<PeerId>& watched() const { return watched_; }
  // Something of the peer has arrived, and was not read yet.
  void watch(PeerId peer, TimePoint now);
  // It is read, or does not come any more.
  void read(PeerId peer, TimePoint now);
  // Whoever is watched still waits.
  void tick(TimePoint now);

  // In the last minute.
  Duration worst(TimePoint now) const;
  // It is late by more than kWarned, and that was not said in the last kWarningPause.
  std::optional<Duration> take_warning();

 private:
  static constexpr Duration kSlot = std::chrono::seconds(10);
  static constexpr std::size_t kSlots = 6;
  struct Slot {
    std::int64_t number = -1;
    Duration worst{0};
  };
  static std::int64_t number_of(TimePoint now) { return now.time_since_epoch() / kSlot; }
  void note(Duration lag, TimePoint now);

  std::array<Slot, kSlots> slots_;
  std::optional<PeerId> watched_;
  TimePoint since_;
  Duration unsaid_{0};  // the worst that was not warned of
  TimePoint next_warning_ = TimePoint::min();
  TimePoint last_;
};

}  // namespace bps

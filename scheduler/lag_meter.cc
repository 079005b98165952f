#include "scheduler/lag_meter.h"

#include <algorithm>
#include <utility>

namespace bps {

void LagMeter::note(Duration lag, TimePoint now) {
  last_ = now;
  const std::int64_t number = number_of(now);
  Slot& slot = slots_[static_cast<std::size_t>(number) % kSlots];
  if (slot.number != number) slot = {number, Duration(0)};
  slot.worst = std::max(slot.worst, lag);
  unsaid_ = std::max(unsaid_, lag);
}

void LagMeter::watch(PeerId peer, TimePoint now) {
  watched_ = peer;
  since_ = now;
}

void LagMeter::read(PeerId peer, TimePoint now) {
  if (watched_ != peer) return;
  watched_.reset();
  note(now - since_, now);
}

void LagMeter::tick(TimePoint now) { note(watched_ ? now - since_ : Duration(0), now); }

Duration LagMeter::worst(TimePoint now) const {
  const std::int64_t oldest = number_of(now) - static_cast<std::int64_t>(kSlots) + 1;
  Duration worst{0};
  for (const Slot& slot : slots_) {
    if (slot.number >= oldest) worst = std::max(worst, slot.worst);
  }
  return worst;
}

std::optional<Duration> LagMeter::take_warning() {
  if (unsaid_ < kWarned || last_ < next_warning_) return std::nullopt;
  next_warning_ = last_ + kWarningPause;
  return std::exchange(unsaid_, Duration(0));
}

}  // namespace bps

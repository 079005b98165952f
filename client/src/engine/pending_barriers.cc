#include "client/src/engine/pending_barriers.h"

#include <algorithm>
#include <utility>

namespace bps {

Barrier PendingBarriers::arrive(Done done, TimePoint now) {
  const std::uint64_t number = next_++;
  pending_.emplace(number, Arrival{std::move(done), now});
  return Barrier{number};
}

void PendingBarriers::on_done(const BarrierDone& barrier) {
  if (barrier.error.code == ErrorCode::ok) done_ = std::max(done_, barrier.number + 1);
  const auto found = pending_.find(barrier.number);
  if (found == pending_.end()) return;
  const Done done = std::move(found->second.done);
  pending_.erase(found);
  done(barrier.error.code == ErrorCode::ok ? Status() : Status(barrier.error));
}

void PendingBarriers::fail(const Error& error) {
  for (auto& [number, arrival] : std::exchange(pending_, {}))
    arrival.done(error);
}

std::vector<PendingBarriers::Pending> PendingBarriers::pending() const {
  std::vector<Pending> all;
  for (const auto& [number, arrival] : pending_)
    all.push_back({number, arrival.since});
  return all;
}

}  // namespace bps

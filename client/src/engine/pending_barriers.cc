#include "client/src/engine/pending_barriers.h"

#include <algorithm>
#include <utility>

namespace bps {

Barrier PendingBarriers::arrive(Done done) {
  const std::uint64_t number = next_++;
  pending_.emplace(number, std::move(done));
  return Barrier{number};
}

void PendingBarriers::on_done(const BarrierDone& barrier) {
  if (barrier.error.code == ErrorCode::ok) done_ = std::max(done_, barrier.number + 1);
  const auto found = pending_.find(barrier.number);
  if (found == pending_.end()) return;
  const Done done = std::move(found->second);
  pending_.erase(found);
  done(barrier.error.code == ErrorCode::ok ? Status() : Status(barrier.error));
}

void PendingBarriers::fail(const Error& error) {
  for (auto& [number, done] : std::exchange(pending_, {}))
    done(error);
}

std::vector<std::uint64_t> PendingBarriers::pending() const {
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, done] : pending_)
    numbers.push_back(number);
  return numbers;
}

}  // namespace bps

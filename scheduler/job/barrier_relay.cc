#include "scheduler/job/barrier_relay.h"

#include <fmt/format.h>

#include <algorithm>

namespace bps {

Status BarrierRelay::arrived(const Worker& worker, std::uint64_t number) {
  if (!barriers_.acceptable(number)) {
    return make_error(ErrorCode::protocol,
                      fmt::format("Barrier {} when {} is next", number, barriers_.done()));
  }
  if (number < barriers_.done()) {
    run_.outbox.send(worker.peer, BarrierDone{number, {}});
    return {};
  }
  const std::uint64_t before = barriers_.done();
  if (barriers_.arrive(worker.rank, number)) tell_done(before);
  if (const auto& blocked = barriers_.blocked(); blocked && number >= blocked->from)
    run_.outbox.send(worker.peer, BarrierDone{number, blocked_error(number, blocked->left)});
  return {};
}

void BarrierRelay::left(Rank rank) {
  const auto before = barriers_.blocked();
  barriers_.leave(rank);
  const Barriers::Blocked& blocked = *barriers_.blocked();
  if (before && before->from == blocked.from) return;           // whoever waits knows
  const std::uint64_t to = before ? before->from : UINT64_MAX;  // those have the error
  for (const auto& [other, worker] : run_.membership.workers()) {
    if (worker.left) continue;
    const std::uint64_t waits_to = std::min(to, barriers_.arrived(other));
    for (std::uint64_t number = blocked.from; number < waits_to; ++number)
      run_.outbox.send(worker.peer, BarrierDone{number, blocked_error(number, blocked.left)});
  }
}

void BarrierRelay::lost(Rank rank) {
  const std::uint64_t before = barriers_.done();
  barriers_.drop(rank);
  tell_done(before);
}

void BarrierRelay::tell_done(std::uint64_t from) const {
  for (std::uint64_t done = from; done < barriers_.done(); ++done)
    run_.broadcast(BarrierDone{done, {}});
}

Error BarrierRelay::blocked_error(std::uint64_t number, Rank left) const {
  return make_error(ErrorCode::configuration,
                    fmt::format("barrier {} of job {} can never complete: {} has left before it", number,
                                run_.name(), run_.membership.name_of(left)),
                    "call barrier equally often on all ranks");
}

}  // namespace bps

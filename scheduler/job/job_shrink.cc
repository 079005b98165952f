// A worker of a running job is lost, and with it those that it sums with (decision 0019), and the job goes on
// without them (decision 0012).
#include <fmt/format.h>

#include <algorithm>

#include "scheduler/job/job.h"
#include "scheduler/text.h"

namespace bps {

// Somebody has to be left on another host who has not said that it pushes no more.
bool Job::can_shrink(Rank lost) const {
  if (run_.membership.settings().worker_loss != WorkerLoss::shrink || phase_ != Phase::running) return false;
  const auto& workers = run_.membership.workers();
  const Rank leader = workers.at(lost).leader;
  return std::any_of(workers.begin(), workers.end(),
                     [&](const auto& entry) { return entry.second.leader != leader && !entry.second.left; });
}

// With one of a host that sums all of it are lost, as far as they have not left. Those who live are told so.
void Job::shrink(Worker& worker, const std::string& reason) {
  forget(worker, reason);
  std::vector<Rank> others;
  for (auto& [rank, other] : run_.membership.workers()) {
    if (other.leader != worker.leader || other.left) continue;
    others.push_back(rank);
    worker_suspected(rank);
    forget(other, fmt::format("{} of job {} is lost with its host: {}", to_string(other), name(), reason));
    run_.outbox.cut_off({other.incarnation, "its host is lost with " + run_.membership.name_of(worker.rank),
                         "the loss of one rank is that of its host, and you are on it: " + reason,
                         kRestartAdvice});
  }
  const auto& workers = run_.membership.workers();
  const auto there = std::count_if(workers.begin(), workers.end(),
                                   [](const auto& entry) { return entry.second.loss.empty(); });
  const std::string host =
      others.empty() ? "" : fmt::format("; with it goes its host ({})", ranks_text(others));
  run_.outbox.log(LogLevel::warn,
                  fmt::format("{}{}; it goes on with {} of {} workers, generation {}", reason, host, there,
                              run_.membership.world_size(), losses_.generation().value));
  losses_.tell_workers();
}

// Everything goes on without it.
void Job::forget(Worker& worker, const std::string& reason) {
  worker.left = worker.gone = true;
  worker.loss = reason;
  has_new_loss_ = true;
  catch_up_.forget(worker.rank);
  losses_.add(worker.rank, reason, servers_.used());
  tensors_.table().leave(worker.rank);
  departures_.settle_all(worker.rank);
  const std::uint64_t before = barriers_.done();
  barriers_.drop(worker.rank);
  for (std::uint64_t done = before; done < barriers_.done(); ++done)
    run_.broadcast(BarrierDone{done, {}});
}

}  // namespace bps

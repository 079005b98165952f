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
  run_.outbox.log(LogLevel::warn, fmt::format("{}{}; it goes on with {} of {} workers, generation {}", reason,
                                              host, there, run_.membership.world_size(), generation_.value));
  tell_shrunk();
}

// Everything goes on without it.
void Job::forget(Worker& worker, const std::string& reason) {
  worker.left = worker.gone = true;
  worker.loss = reason;
  has_new_loss_ = true;
  behind_.erase(worker.rank);
  generation_ = generation_.next();
  Shrink& shrink = shrinks_.emplace_back();
  shrink.message = Shrunk{0, run_.id, generation_, worker.rank, reason};
  for (const ServerId server : used_)
    shrink.waiting.insert(run_.servers.ask(server, shrink.message));
  tensors_->leave(worker.rank);
  departures_.settle_all(worker.rank);
  const std::uint64_t before = barriers_.done();
  barriers_.drop(worker.rank);
  for (std::uint64_t done = before; done < barriers_.done(); ++done)
    run_.broadcast(BarrierDone{done, {}});
}

// To a server that is new to the run.
void Job::tell_losses(ServerId server) {
  for (Shrink& shrink : shrinks_)
    shrink.waiting.insert(run_.servers.ask(server, shrink.message));
}

bool Job::shrink_acked(std::uint64_t request) {
  const bool known = std::any_of(shrinks_.begin(), shrinks_.end(),
                                 [&](Shrink& shrink) { return shrink.waiting.erase(request) != 0; });
  if (known) tell_shrunk();
  return known;
}

// Workers hear of a generation when all servers are in it, one after the other.
void Job::tell_shrunk() {
  for (; told_shrinks_ < shrinks_.size() && shrinks_[told_shrinks_].waiting.empty(); ++told_shrinks_)
    run_.broadcast(shrinks_[told_shrinks_].message);
}

void Job::catch_up_losses(const Worker& worker, Generation known) {
  for (std::size_t i = 0; i < told_shrinks_; ++i) {
    if (shrinks_[i].message.generation > known) run_.outbox.send(worker.peer, shrinks_[i].message);
  }
}

// Those that the scheduler before had told others: all of them are in the first generation here, and nobody
// is a member who is not known here.
void Job::catch_up_losses(ServerId server, const OpenJob& known) {
  std::vector<Rank> lost;
  for (const Member& member : known.members) {
    if (run_.membership.find(member.rank) == nullptr) lost.push_back(member.rank);
  }
  // It has heard of whom, but not of all: one of them again, for the generation.
  const std::vector<Rank> missing = run_.membership.missing();
  if (lost.empty() && known.generation < first_generation_ && !missing.empty())
    lost.push_back(missing.front());
  for (const Rank rank : lost) {
    const std::string reason =
        fmt::format("rank {} of job {} was lost before the scheduler was started again", rank.value, name());
    const std::uint64_t request =
        run_.servers.ask(server, Shrunk{0, run_.id, first_generation_, rank, reason});
    // Workers are in that generation, or soon: they are to find nobody who is not.
    if (move_) move_->waiting.insert(request);
  }
}

}  // namespace bps

#include "scheduler/job/losses.h"

#include <fmt/format.h>

#include <algorithm>

namespace bps {

void Losses::add(Rank rank, const std::string& reason, const std::set<ServerId>& servers) {
  generation_ = generation_.next();
  Loss& loss = losses_.emplace_back();
  loss.message = Shrunk{0, run_.id, generation_, rank, reason};
  for (const ServerId server : servers)
    loss.waiting.insert(run_.servers.ask(server, loss.message));
}

void Losses::tell(ServerId server) {
  for (Loss& loss : losses_)
    loss.waiting.insert(run_.servers.ask(server, loss.message));
}

bool Losses::acked(std::uint64_t request) {
  const bool known = std::any_of(losses_.begin(), losses_.end(),
                                 [&](Loss& loss) { return loss.waiting.erase(request) != 0; });
  if (known) tell_workers();
  return known;
}

void Losses::tell_workers() {
  for (; told_ < losses_.size() && losses_[told_].waiting.empty(); ++told_)
    run_.broadcast(losses_[told_].message);
}

void Losses::catch_up(const Worker& worker, Generation known) const {
  for (std::size_t i = 0; i < told_; ++i) {
    if (losses_[i].message.generation > known) run_.outbox.send(worker.peer, losses_[i].message);
  }
}

// All of them are in the first generation here, and nobody is a member who is not known here.
std::vector<std::uint64_t> Losses::catch_up(ServerId server, const OpenJob& known) const {
  std::vector<Rank> lost;
  for (const Member& member : known.members) {
    if (run_.membership.find(member.rank) == nullptr) lost.push_back(member.rank);
  }
  // It has heard of whom, but not of all: one of them again, for the generation.
  const std::vector<Rank> missing = run_.membership.missing();
  if (lost.empty() && known.generation < first_generation_ && !missing.empty())
    lost.push_back(missing.front());
  std::vector<std::uint64_t> requests;
  for (const Rank rank : lost) {
    const std::string reason = fmt::format(
        "rank {} of job {} was lost before the scheduler was started again", rank.value, run_.name());
    requests.push_back(run_.servers.ask(server, Shrunk{0, run_.id, first_generation_, rank, reason}));
  }
  return requests;
}

}  // namespace bps

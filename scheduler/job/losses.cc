#include "scheduler/job/losses.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "scheduler/text.h"

namespace bps {

void Losses::add(Rank rank, const std::string& reason) {
  ++count_;
  const auto left = static_cast<std::uint32_t>(run_.membership.workers().size() - count_);
  if (!added_) {
    generation_ = generation_.next();
    added_ = Shrunk{0, run_.id, generation_, {rank}, left, reason};
    return;
  }
  added_->workers = left;
  std::vector<Rank>& lost = added_->lost;
  lost.insert(std::lower_bound(lost.begin(), lost.end(), rank), rank);
  // Each has a line in the log; the text need not hold them all.
  constexpr std::size_t kMostNamed = 4;
  if (lost.size() <= kMostNamed) added_->reason += "; " + reason;
  if (lost.size() == kMostNamed + 1) added_->reason += "; and others with them";
}

void Losses::add_unknown(std::vector<Rank> ranks) {
  generation_ = generation_.next();
  const auto left = static_cast<std::uint32_t>(run_.membership.workers().size());
  std::string reason = reason_of(ranks);
  added_ = Shrunk{0, run_.id, generation_, std::move(ranks), left, std::move(reason)};
}

void Losses::tell(const std::set<ServerId>& servers) {
  if (!added_) return;
  Loss& loss = losses_.emplace_back();
  loss.message = *std::exchange(added_, std::nullopt);
  for (const ServerId server : servers)
    loss.waiting.insert(run_.servers.ask(server, loss.message));
  tell_workers();
}

void Losses::tell_newcomer(ServerId server) {
  for (Loss& loss : losses_)
    loss.waiting.insert(run_.servers.ask(server, loss.message));
}

bool Losses::acked(std::uint64_t request) {
  const bool known = std::any_of(losses_.begin(), losses_.end(),
                                 [&](Loss& loss) { return loss.waiting.erase(request) != 0; });
  if (known) tell_workers();
  return known;
}

std::string Losses::reason_of(const std::vector<Rank>& lost) const {
  return fmt::format("{} of job {} {} lost before the scheduler was started again", ranks_text(lost),
                     run_.name(), lost.size() == 1 ? "was" : "were");
}

// Who it was is in the reason, as far as that is for people.
Shrunk Losses::for_workers(Shrunk message) {
  message.lost.clear();
  return message;
}

void Losses::tell_workers() {
  for (; told_ < losses_.size() && losses_[told_].waiting.empty(); ++told_)
    run_.broadcast(for_workers(losses_[told_].message));
}

void Losses::catch_up(const Worker& worker, Generation known) const {
  for (std::size_t i = 0; i < told_; ++i) {
    if (losses_[i].message.generation > known) run_.outbox.send(worker.peer, for_workers(losses_[i].message));
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
  if (lost.empty()) return {};
  const auto left = static_cast<std::uint32_t>(run_.membership.workers().size());
  std::string reason = reason_of(lost);
  return {run_.servers.ask(server,
                           Shrunk{0, run_.id, first_generation_, std::move(lost), left, std::move(reason)})};
}

}  // namespace bps

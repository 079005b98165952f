#include "scheduler/job/join_relay.h"

#include <algorithm>

namespace bps {
namespace {

// Its ranks have not dropped it, and it has not failed.
bool is_ready(TensorId group, const TensorCatalog& catalog) {
  return catalog.has(group) && catalog[group].state == TensorCatalog::State::ready;
}

}  // namespace

void JoinRelay::joined(Rank rank, const RankJoined& joined, const TensorCatalog& catalog) {
  Group& group = groups_[joined.group];
  if (group.is_failing) return;
  RankJoined& known = group.joined[rank];
  known = joined;
  known.rank = rank;
  known.last = false;
  group.last = rank;
  group.next = std::max(group.next, joined.number);
  const TensorCatalog::Tensor& tensor = catalog[joined.group];
  if (!is_complete(group, tensor)) return run_.broadcast(known, tensor.ranks);
  end(joined.group, group, tensor);
  groups_.erase(joined.group);
}

void JoinRelay::made(const CallsMade& made) {
  const auto found = groups_.find(made.group);
  if (found == groups_.end() || found->second.is_failing || made.calls.empty()) return;
  found->second.next = std::max(found->second.next, made.calls.back().call.number + 1);
  for (const auto& [rank, joined] : found->second.joined) {
    const Worker* const worker = run_.membership.find(rank);
    if (worker != nullptr && !worker->left) run_.outbox.send(worker->peer, made);
  }
}

void JoinRelay::let_go(const TensorCatalog& catalog) {
  std::erase_if(groups_, [&](const auto& entry) {
    const auto& [id, group] = entry;
    if (!is_ready(id, catalog)) return true;
    if (group.is_failing || !is_complete(group, catalog[id])) return false;
    end(id, group, catalog[id]);
    return true;
  });
}

void JoinRelay::tell(const Worker& worker, const TensorCatalog& catalog) const {
  for (const auto& [id, group] : groups_) {
    if (!is_ready(id, catalog) || !catalog[id].ranks.has(worker.rank)) continue;
    for (const auto& [rank, joined] : group.joined)
      run_.outbox.send(worker.peer, joined);
  }
}

bool JoinRelay::is_complete(const Group& group, const TensorCatalog::Tensor& tensor) const {
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (!worker.left && tensor.ranks.has(rank) && group.joined.count(rank) == 0) return false;
  }
  return true;
}

void JoinRelay::end(TensorId id, const Group& group, const TensorCatalog::Tensor& tensor) const {
  RankJoined last = group.joined.at(group.last);
  last.group = id;
  last.number = group.next;
  last.last = true;
  run_.broadcast(last, tensor.ranks);
}

}  // namespace bps

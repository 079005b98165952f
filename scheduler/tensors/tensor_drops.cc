#include "scheduler/tensors/tensor_drops.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "scheduler/find_from.h"
#include "scheduler/tensors/tensor_pieces.h"

namespace bps {
namespace {

using State = TensorCatalog::State;

}  // namespace

Status TensorDrops::note(Rank rank, const std::vector<TensorId>& tensors) {
  for (const TensorId id : tensors) {
    const bool is_there = catalog_.has(id);
    const bool was_given =
        is_there ? catalog_[id].state != State::declaring && catalog_[id].state != State::refused
                 : !catalog_.is_new(id);
    if (!was_given) {
      return make_error(ErrorCode::protocol,
                        fmt::format("DropTensors for tensor {}, which nobody has declared", id.value));
    }
    if (!is_there || catalog_.has_dropped(id, rank)) continue;
    catalog_.note_dropped(id, rank);
    if (catalog_[id].state == State::ending) continue;
    dropped_.insert(id);
    changed_.insert(id);
    news_[rank].push_back(id);
  }
  return {};
}

void TensorDrops::note_absence(Rank rank) {
  changed_ = dropped_;
  for (const auto& [id, tensor] : catalog_.all()) {
    const bool is_there = tensor.state == State::ready || tensor.state == State::failed;
    if (is_there && !tensor.ranks.is_all() && tensor.ranks.has(rank)) changed_.insert(id);
  }
}

void TensorDrops::tell_again() {
  news_.clear();
  for (const TensorId id : dropped_) {
    for (Rank rank{0}; rank.value < catalog_[id].dropped.size(); rank = rank.next()) {
      if (catalog_.has_dropped(id, rank)) news_[rank].push_back(id);
    }
  }
}

void TensorDrops::go_on() {
  std::vector<TensorId> over;
  std::erase_if(changed_, [&](TensorId id) {
    // One that has failed before its servers had confirmed it: they have to, first.
    if (catalog_[id].batch != 0) return false;
    if (is_over(id)) over.push_back(id);
    return true;
  });
  end(over);
  tell_servers();
}

// Who has left or is lost needs it no more. Mostly there is one who was there before, and still is.
bool TensorDrops::is_over(TensorId id) {
  Rank& last = stays_[id];
  const auto found = find_from(run_.membership.workers(), last, [&](const auto& entry) {
    return !entry.second.left && !catalog_.has_dropped(id, entry.first);
  });
  if (found) last = *found;
  return !found;
}

void TensorDrops::tell_servers() {
  for (const auto& [rank, tensors] : std::exchange(news_, {})) {
    std::map<ServerId, std::vector<TensorId>> at;
    for (const TensorId id : tensors) {
      if (!catalog_.has(id) || catalog_[id].state != State::ready) continue;
      for (const ServerId server : catalog_.servers_of(catalog_[id]))
        at[server].push_back(id);
    }
    for (const auto& [server, its] : at) {
      for (std::vector<TensorId>& piece : pieces_of(its))
        run_.servers.send(server, WorkerLeft{run_.id, rank, true, std::move(piece)});
    }
  }
}

void TensorDrops::end(const std::vector<TensorId>& tensors) {
  std::map<ServerId, std::vector<TensorId>> at;
  std::vector<TensorId> nowhere;
  for (const TensorId id : tensors) {
    dropped_.erase(id);
    stays_.erase(id);
    const bool is_at_servers = catalog_[id].state == State::ready;
    catalog_[id].state = State::ending;
    const std::set<ServerId> servers =
        is_at_servers ? catalog_.servers_of(catalog_[id]) : std::set<ServerId>();
    if (servers.empty()) nowhere.push_back(id);
    for (const ServerId server : servers)
      at[server].push_back(id);
    if (!servers.empty()) freeing_[id] = static_cast<std::uint32_t>(servers.size());
  }
  for (const auto& [server, its] : at) {
    for (std::vector<TensorId>& piece : pieces_of(its)) {
      const std::uint64_t request = run_.servers.ask(server, DropTensors{0, run_.id, piece, {}});
      requests_.emplace(request, Request{server, std::move(piece)});
    }
  }
  settle(nowhere);
}

std::set<ServerId> TensorDrops::freeing(TensorId id) const {
  std::set<ServerId> servers;
  for (const auto& [request, asked] : requests_) {
    if (std::find(asked.tensors.begin(), asked.tensors.end(), id) != asked.tensors.end())
      servers.insert(asked.server);
  }
  return servers;
}

bool TensorDrops::acked(std::uint64_t request) {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return false;
  const std::vector<TensorId> tensors = std::move(found->second.tensors);
  requests_.erase(found);
  std::vector<TensorId> freed;
  for (const TensorId id : tensors) {
    const auto freeing = freeing_.find(id);
    if (--freeing->second > 0) continue;
    freeing_.erase(freeing);
    freed.push_back(id);
  }
  settle(freed);
  return true;
}

void TensorDrops::forget(ServerId server) {
  std::vector<std::uint64_t> lost;
  for (const auto& [request, asked] : requests_) {
    if (asked.server == server) lost.push_back(request);
  }
  for (const std::uint64_t request : lost)
    acked(request);
}

// No server has them any more.
void TensorDrops::settle(const std::vector<TensorId>& tensors) {
  for (std::vector<TensorId>& piece : pieces_of(tensors))
    run_.broadcast(DropTensors{0, run_.id, std::move(piece), {}});
  for (const TensorId id : tensors)
    catalog_.remove(id);
}

}  // namespace bps

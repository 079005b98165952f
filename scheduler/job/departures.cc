#include "scheduler/job/departures.h"

#include <fmt/format.h>

namespace bps {

void Departures::begin(Rank rank, bool goes_on) {
  note_staying();
  const bool is_covered = call_ > 0 && (!goes_on || !is_out_);
  if (!is_covered) {
    ++call_;
    is_out_ = false;
  }
  const std::uint64_t needed = goes_on ? call_ : 1;
  run_.membership.find(rank)->lingers_for = needed;
  linger_.emplace(needed, rank);
  settle_all(rank);
  if (!is_out_) ask_all();
}

void Departures::note_staying() {
  if (call_ > 0) return;
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (!worker.left) stay_.emplace(rank, Progress{});
  }
  if (!stay_.empty()) settled_.emplace(0, stay_.size());
}

// Who has not answered an earlier call gets this one when he has.
void Departures::ask_all() {
  if (asked_ == stay_.size()) return;
  for (auto& [rank, progress] : stay_) {
    if (!progress.is_asked()) ask(progress, run_.membership.find(rank)->peer);
  }
}

void Departures::ask(Progress& progress, PeerId peer) {
  if (!progress.is_asked()) ++asked_;
  progress.asked = call_;
  is_out_ = true;
  run_.outbox.send(peer, Settle{call_});
}

Status Departures::settled(Rank rank, std::uint64_t call) {
  const auto found = stay_.find(rank);
  const std::uint64_t asked = found == stay_.end() ? call_ : found->second.asked;
  if (call == 0 || call > asked)
    return make_error(ErrorCode::protocol, fmt::format("Settled {}, which nobody asked for", call));
  if (found == stay_.end() || call <= found->second.settled) return {};
  Progress& progress = found->second;
  const auto before = settled_.find(progress.settled);
  if (--before->second == 0) settled_.erase(before);
  progress.settled = call;
  ++settled_[call];
  if (!progress.is_asked()) --asked_;
  if (!progress.is_asked() && call < call_) ask(progress, run_.membership.find(rank)->peer);
  let_go_of_settled();
  return {};
}

void Departures::settle_all(Rank rank) {
  const auto found = stay_.find(rank);
  if (found == stay_.end()) return;
  const auto entry = settled_.find(found->second.settled);
  if (--entry->second == 0) settled_.erase(entry);
  if (found->second.is_asked()) --asked_;
  stay_.erase(found);
  let_go_of_settled();
}

void Departures::ask_again(Rank rank, PeerId peer) {
  const auto found = stay_.find(rank);
  if (found != stay_.end() && found->second.settled < call_) ask(found->second, peer);
}

void Departures::let_go_of_settled() {
  while (!linger_.empty()) {
    const auto [call, rank] = *linger_.begin();
    if (!settled_.empty() && settled_.begin()->first < call) return;
    linger_.erase(linger_.begin());
    let_go(*run_.membership.find(rank));
  }
}

void Departures::let_go(Worker& worker) {
  worker.left = worker.gone = true;
  run_.outbox.send(worker.peer, Left{});
  run_.outbox.worker_gone(worker.incarnation);
  for (const ServerId server : servers_)
    run_.servers.send(server, WorkerLeft{run_.id, worker.rank, false});
}

void Departures::died(Worker& worker) {
  note_unsettled(worker.rank);
  linger_.erase({worker.lingers_for, worker.rank});
  worker.peer = PeerId{};
  let_go(worker);
}

void Departures::clear() {
  stay_.clear();
  settled_.clear();
  asked_ = 0;
  linger_.clear();
}

}  // namespace bps

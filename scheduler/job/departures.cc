#include "scheduler/job/departures.h"

#include <fmt/format.h>

namespace bps {

void Departures::begin(Rank rank) {
  Farewell& farewell = farewells_[++last_farewell_];
  farewell.rank = rank;
  for (const auto& [other, state] : run_.membership.workers()) {
    if (!state.left) farewell.waiting.insert(other);
  }
  run_.broadcast(Settle{last_farewell_, rank});
  settle_all(rank);
}

Status Departures::settled(Rank rank, std::uint64_t number) {
  if (number == 0 || number > last_farewell_)
    return make_error(ErrorCode::protocol, fmt::format("Settled {}, which nobody asked for", number));
  const auto found = farewells_.find(number);
  if (found == farewells_.end()) return {};
  found->second.waiting.erase(rank);
  if (found->second.waiting.empty()) {
    Worker& worker = *run_.membership.find(found->second.rank);
    farewells_.erase(found);
    let_go(worker);
  }
  return {};
}

void Departures::settle_all(Rank rank) {
  for (auto next = farewells_.begin(); next != farewells_.end();) {
    const std::uint64_t number = (next++)->first;  // settled() may take it away
    (void)settled(rank, number).ok();
  }
}

void Departures::ask_again(Rank rank, PeerId peer) const {
  for (const auto& [number, farewell] : farewells_) {
    if (farewell.waiting.count(rank) != 0) run_.outbox.send(peer, Settle{number, farewell.rank});
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
  std::erase_if(farewells_, [&](const auto& entry) { return entry.second.rank == worker.rank; });
  worker.peer = PeerId{};
  let_go(worker);
}

}  // namespace bps

#include "scheduler/core/drains.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

namespace bps {
namespace {

constexpr std::size_t kMaxServersNamed = 8;

}  // namespace

std::optional<Error> Drains::objection(const Drain& query) const {
  const auto& all = tables_.servers.all();
  const auto found = all.find(query.server);
  if (found == all.end()) {
    std::string names;
    std::size_t named = 0;
    for (const auto& [id, server] : all) {
      if (named++ < kMaxServersNamed) names += (names.empty() ? "" : ", ") + to_string(server);
    }
    return make_error(ErrorCode::invalid_argument, fmt::format("there is no server {}", query.server.value),
                      names.empty() ? "no server is there" : "there are: " + names);
  }
  const bool others = std::any_of(all.begin(), all.end(), [&](const auto& entry) {
    return entry.first != query.server && entry.second.usable();
  });
  if (!others && !found->second.draining) {
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("{} is the last one: nobody could take what it has", to_string(found->second)),
        "start another bps-server first, or end this one with SIGTERM");
  }
  if (found->second.peer.value == 0) {
    return make_error(ErrorCode::peer_lost,
                      fmt::format("{} has lost its connection", to_string(found->second)),
                      "it is dead soon, and its partitions move then");
  }
  return std::nullopt;
}

void Drains::begin(PeerId admin, const Drain& query) {
  Drained begun;
  begun.request = query.request;
  if (auto error = objection(query)) {
    begun.error = std::move(*error);
    return tables_.outbox.send(admin, std::move(begun));
  }
  ServerRecord& server = *tables_.servers.find(query.server);
  server.told_to_drain = true;
  begun.jobs = static_cast<std::uint32_t>(server.jobs.size());
  // Whoever had no room when it was first asked to drain may have some now.
  for (const JobRun run : std::set<JobRun>(server.jobs)) {
    if (Job* const job = tables_.runs.find(run)) job->drain_again(server);
  }
  note_keepers(server, begun);
  std::erase_if(watches_, [&](const Watch& watch) { return !tables_.peers.is_admin(watch.peer); });
  if (watches_.size() >= ServerQueries::kMaxQueriesOfPeer * tables_.options.max_admins) {
    begun.error = make_error(ErrorCode::out_of_memory, "too many drains are watched");
    return tables_.outbox.send(admin, std::move(begun));
  }
  tables_.outbox.log(LogLevel::info, fmt::format("{} is to drain, says the administrator at {}",
                                                 to_string(server), tables_.peers.at(admin).address));
  watches_.push_back({admin, query, begun.jobs});
  tables_.outbox.send(server.peer, query);
  tables_.outbox.send(admin, std::move(begun));
}

void Drains::ask_again(const ServerRecord& server) const {
  for (const Watch& watch : watches_) {
    if (watch.query.server == server.id) tables_.outbox.send(server.peer, watch.query);
  }
}

void Drains::note_keepers(const ServerRecord& server, Drained& drained) const {
  for (const JobRun run : server.jobs) {
    const Job* const job = tables_.runs.find(run);
    auto reason = job != nullptr ? job->keeps(server.id) : std::nullopt;
    if (!reason || drained.stays_for.size() >= kMaxWaitsNamed) continue;
    drained.stays_for.push_back(job->name());
    drained.reasons.push_back(std::move(*reason));
  }
}

void Drains::kept(ServerId server) const {
  const ServerRecord* const record = tables_.servers.find(server);
  if (record == nullptr) return;
  for (const Watch& watch : watches_) {
    if (watch.query.server != server || !tables_.peers.is_admin(watch.peer)) continue;
    Drained drained;
    drained.request = watch.query.request;
    drained.jobs = watch.jobs;
    note_keepers(*record, drained);
    tables_.outbox.send(watch.peer, std::move(drained));
  }
}

void Drains::gone(const ServerRecord& server, const Error& error) {
  for (const Watch& watch : watches_) {
    if (watch.query.server != server.id || !tables_.peers.is_admin(watch.peer)) continue;
    Drained drained;
    drained.request = watch.query.request;
    drained.over = true;
    drained.error = error;
    drained.jobs = watch.jobs;
    drained.partitions = server.moved_partitions;
    tables_.outbox.send(watch.peer, std::move(drained));
  }
  std::erase_if(watches_, [&](const Watch& watch) {
    return watch.query.server == server.id || !tables_.peers.is_admin(watch.peer);
  });
}

}  // namespace bps

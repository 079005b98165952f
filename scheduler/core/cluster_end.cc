#include "scheduler/core/cluster_end.h"

#include <algorithm>

namespace bps {

// ---- administrators ----

void ClusterEnd::ask(PeerId admin, const EndCluster& query) {
  if (answered_) return answer(admin, query.request);
  if (!asked_from_) asked_from_ = tables_.peers.at(admin).address;
  asked_.emplace_back(admin, query.request);
}

bool ClusterEnd::waits(PeerId admin) const {
  return std::any_of(asked_.begin(), asked_.end(), [&](const auto& asked) { return asked.first == admin; });
}

void ClusterEnd::answer() {
  answered_ = true;
  for (const auto& [admin, request] : std::exchange(asked_, {})) {
    if (tables_.peers.is_admin(admin)) answer(admin, request);
  }
  for (const PeerId other : tables_.peers.administrators())
    refuse(other, reason());
}

void ClusterEnd::answer(PeerId admin, std::uint64_t request) {
  tables_.outbox.send(admin, ClusterEnded{request, static_cast<std::uint32_t>(runs_.size()),
                                          static_cast<std::uint32_t>(servers_.size())});
  tables_.peers.close(admin);
}

// ---- nodes ----

void ClusterEnd::begin(TimePoint now, const Error& reason) {
  reason_ = reason;
  until_ = started_.value_or(now) + tables_.options.collect_time();
  for (const auto& [run, job] : tables_.runs.all())
    runs_.insert(run);
  for (const auto& [id, server] : tables_.servers.all())
    servers_.insert(server.incarnation);
  if (tables_.nodes.any_without_connection())
    until_ = std::max(until_, now + tables_.options.detector.reconnect_grace);
}

Error ClusterEnd::reason_for_server() const {
  return make_error(ErrorCode::closed, reason().message, "start this server again when a scheduler is there");
}

void ClusterEnd::refuse(PeerId id, const HelloWorker& hello) {
  const bool had_joined = hello.incarnation.value != 0;
  if (had_joined && runs_.size() < tables_.options.max_jobs) runs_.insert(hello.job_run);
  refuse(id, reason());
}

void ClusterEnd::refuse(PeerId id, const HelloServer& hello) {
  const bool had_joined = hello.incarnation.value != 0;
  if (had_joined && servers_.size() < tables_.options.max_servers) servers_.insert(hello.incarnation);
  refuse(id, reason_for_server());
}

void ClusterEnd::refuse(PeerId id, const Error& error) {
  tables_.outbox.send(id, Refused{error.code, error.message, error.advice});
  tables_.peers.close(id);
}

}  // namespace bps

#include "scheduler/handoff/run_servers.h"

namespace bps {

std::uint64_t RunServers::open_at(ServerId server, Epoch epoch) {
  adopt(server);
  const std::uint64_t request = run_.servers.ask(
      server, OpenJob{0, run_.id, run_.name(), losses_.first_generation(), epoch, run_.membership.members()});
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (worker.left && worker.loss.empty())
      run_.servers.send(server, WorkerLeft{run_.id, rank, !worker.gone});
  }
  losses_.tell_newcomer(server);
  return request;
}

void RunServers::adopt(ServerId server) {
  used_.insert(server);
  run_.servers.use(server, run_.id);
}

// It will not acknowledge the losses that it was told.
void RunServers::forget_requests(const ServerRecord& server) {
  for (const auto& [request, asked] : server.unacknowledged)
    (void)losses_.acked(request);
}

bool RunServers::died(const ServerRecord& server) {
  forget_requests(server);
  return forget(server.id);
}

void RunServers::let_go(const ServerRecord& server) {
  used_.erase(server.id);
  forget_requests(server);
  run_.servers.send(server.id, JobEnded{run_.id, {}});
  run_.servers.release(server.id, run_.id);
}

void RunServers::let_go_of_all(const Error& why) {
  for (const ServerId server : take_used()) {
    run_.servers.send(server, JobEnded{run_.id, why});
    run_.servers.release(server, run_.id);
  }
}

}  // namespace bps

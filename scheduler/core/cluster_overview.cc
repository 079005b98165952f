#include "scheduler/core/cluster_overview.h"

#include "scheduler/text.h"

namespace bps {

ClusterState ClusterOverview::state(TimePoint now, std::uint64_t request) const {
  const Silence silence = tables_.nodes.silence_at(now);
  ClusterState out;
  out.request = request;
  out.term = tables_.succession.term();
  out.uptime_ms = started_ ? milliseconds_of(now - *started_) : 0;
  out.lag_ms = milliseconds_of(lag_);
  for (const auto& [id, server] : tables_.servers.all()) {
    if (out.servers.size() == kMaxServers) break;
    ServerState& state = out.servers.emplace_back();
    state.server = id;
    state.host = server.host;
    state.endpoint = server.endpoint;
    state.shards = server.shards;
    state.memory_max = server.memory_max;
    state.jobs = static_cast<std::uint32_t>(server.jobs.size());
    state.draining = server.draining;
    const Party party = tables_.servers.party(id, silence);
    state.state = party.state;
    state.silent_ms = party.silent_ms;
    for (const JobRun run : server.jobs) {
      const Job* const job = tables_.runs.find(run);
      if (job != nullptr && job->tensors() != nullptr) state.placed += job->tensors()->bytes_at(id);
    }
  }
  out.gone_servers = tables_.gone_servers.list(now);
  for (const auto& [run, job] : tables_.runs.all()) {
    if (out.jobs.size() == kMaxJobsListed) break;
    out.jobs.push_back(job->waits().state(now, silence));
  }
  return out;
}

}  // namespace bps

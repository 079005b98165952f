// Links between workers and servers of a running job that are cut while both ends live (decision 0016).
#include <algorithm>

#include "scheduler/job/job.h"
#include "scheduler/job/link_blame.h"

namespace bps {

Status Job::lane_lost(TimePoint now, Rank rank, const LaneLost& said) {
  if (ended()) return {};
  if (phase_ != Phase::running) return make_error(ErrorCode::protocol, "LaneLost before the job has started");
  const ServerRecord* const server = run_.servers.find(said.server);
  // It may have gone meanwhile, or its partitions are on their way.
  if (server != nullptr && server->incarnation == said.incarnation &&
      handoff_.has_lane_to(said.server, said.incarnation)) {
    links_.note(now, rank, *server, said);
  }
  return {};
}

void Job::judge_links(TimePoint now) {
  if (phase_ != Phase::running) return;
  const auto has_lane = [this](ServerId server, Incarnation life) {
    return handoff_.has_lane_to(server, life);
  };
  CutLinks links;
  links.cut = links_.take_due(now, has_lane);
  if (links.cut.empty()) return;
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (!worker.gone) links.workers.insert(rank);
  }
  for (const auto& [id, server] : run_.servers.all()) {
    const bool is_used = servers_.uses(id) && handoff_.has_lane_to(id, server.incarnation);
    if (is_used) links.servers.emplace(id, !handoff_.obstacle(id));
    if (!is_used && servers_.can_come(server)) ++links.spares;
  }
  const Blame blame = blame_for(links);
  links_.cut_off(blame.workers, links.cut);
  // The loss of a worker may be the end of the job.
  const bool ends = std::any_of(blame.workers.begin(), blame.workers.end(), [&](Rank rank) {
    return !run_.membership.find(rank)->left && !can_shrink(rank);
  });
  if (!ends && !blame.servers.empty())
    conclude(handoff_.give_up(blame.servers, links_.reason_to_give_up(blame.servers, links.cut)));
}

// ---- for questions ----

Wait Job::wait_of(const CutLink& link, const Silence& silence) const {
  Wait out = wait(WaitKind::link, {party(link.rank, silence), run_.servers.party(link.server, silence)}, 1);
  out.age_ms = link.age_ms;
  return out;
}

}  // namespace bps

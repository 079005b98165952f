#include "scheduler/job/catch_up.h"

#include <algorithm>
#include <set>
#include <utility>

#include "proto/wire/member_groups.h"
#include "scheduler/job/barriers.h"
#include "scheduler/tensors/reported_tensors.h"
#include "scheduler/text.h"

namespace bps {

Status CatchUp::check(const Worker& worker, const WorkerReport& report, bool is_running) const {
  if (report.end.barriers_arrived - report.end.barriers_done > Barriers::kMaxAhead)
    return contradiction("its number of barriers");
  if (!report.started()) return {};
  if (report.start->job_run != run_.id) return contradiction("its run");
  if (report.start->workers > run_.membership.world_size()) return contradiction("its number of workers");
  std::set<Incarnation> lives;
  for (const Member& member : report.start->members) {
    const bool is_new = lives.insert(member.incarnation).second;
    if (member.rank.value >= run_.membership.world_size() || member.incarnation.value == 0 || !is_new)
      return contradiction("a member");
    if (member.rank == worker.rank && member.incarnation != worker.incarnation)
      return contradiction("its life");
  }
  if (!check_groups(report.start->members)) return contradiction("a group");
  for (const LaneTarget& lane : report.start->lanes) {
    if (lane.server.value == 0 || lane.incarnation.value == 0) return contradiction("a lane");
  }
  if (!is_running) return {};
  for (const Member& member : report.start->members) {
    if (!run_.membership.is_in_its_group(member)) return contradiction("a group");
  }
  if (report.epoch() > lanes_.epoch() || report.start->lanes.size() > lanes_.size())
    return contradiction("its epoch");
  for (const auto& [id, known] : report.tensors) {
    const bool needs_it = !worker.left && !report.dropped.contains(id);
    if (!needs_it && has_ended(tensors_.catalog(), id)) continue;
    if (!matches(tensors_.catalog(), known)) return contradiction("a tensor");
  }
  return {};
}

JobStart CatchUp::start_of(const Worker& worker, Epoch epoch) {
  if (!roster_) roster_.emplace(run_.membership);
  JobStart start;
  start.job_run = run_.id;
  start.generation = losses_.first_generation();
  start.epoch = epoch;
  start.partition_bytes = tensors_.catalog().partition_bytes();
  start.lanes = lanes_.all();
  roster_->describe(worker, start);
  return start;
}

void CatchUp::start(const Worker& worker) { run_.outbox.send(worker.peer, start_of(worker, lanes_.epoch())); }

JobStart CatchUp::start_late(const Worker& worker) {
  JobStart start = start_of(worker, LaneTable::kFirstEpoch);
  run_.outbox.send(worker.peer, start);
  return start;
}

void CatchUp::send(const Worker& worker, const WorkerReport& report) const {
  for (TensorFailed& failed : failures_for(tensors_.catalog(), report))
    run_.outbox.send(worker.peer, std::move(failed));
  for (DropTensors& ended : ended_for(tensors_.catalog(), report))
    run_.outbox.send(worker.peer, std::move(ended));
  const std::size_t lanes = report.start->lanes.size();
  losses_.catch_up(worker, report.start->generation);
  if (report.epoch() == lanes_.epoch()) {
    // The last pieces of what has moved in this epoch may be missing.
    const auto rest = news_for(tensors_.catalog(), report, true);
    if (!rest.empty()) send(Moved{run_.id, lanes_.epoch(), "the rest of it", {}, {}, {}}, rest, worker.peer);
    return;
  }
  Moved moved{run_.id, lanes_.epoch(), "the connection to the scheduler was lost meanwhile", {}, {}, {}};
  moved.lanes = lanes_.from(lanes);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const LaneIndex lane{static_cast<std::uint32_t>(i)};
    const auto& closed = report.end.closed;
    if (lanes_.is_retired(i) && std::find(closed.begin(), closed.end(), lane) == closed.end())
      moved.closed.push_back(lane);
  }
  send(std::move(moved), news_for(tensors_.catalog(), report, false), worker.peer);
}

void CatchUp::tell_moved(const Moved& moved, const std::vector<PartitionMove>& moves) {
  const std::map<Rank, WorkerReport> behind = std::exchange(behind_, {});
  for (const auto& [rank, worker] : run_.membership.workers()) {
    // Who lingers may have what a new owner lacks.
    if (worker.gone || worker.peer.value == 0) continue;
    if (const auto report = behind.find(rank); report != behind.end()) {
      send(worker, report->second);
    } else {
      send(moved, moves, worker.peer);
    }
  }
}

// In pieces, if there are many.
void CatchUp::send(Moved moved, const std::vector<PartitionMove>& moves, PeerId peer) const {
  for (const PartitionMove& move : moves) {
    if (moved.moves.size() == kMaxPartitionsPerDeclare) {
      run_.outbox.send(peer, moved);
      moved = Moved{run_.id, lanes_.epoch(), moved.reason, {}, {}, {}};
    }
    moved.moves.push_back(move);
  }
  run_.outbox.send(peer, std::move(moved));
}

void CatchUp::compare(ServerId server, const RunReport& report) const {
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (!worker.left || !worker.loss.empty()) continue;
    const auto known = report.left.find(rank);
    const bool lingers = !worker.gone;
    if (known == report.left.end() || (known->second && !lingers))
      run_.servers.send(server, WorkerLeft{run_.id, rank, lingers});
  }
}

void CatchUp::drop_unwanted(ServerId server, const RunReport& report) const {
  if (tensors_.is_open()) tensors_.drop(server, unwanted(tensors_.catalog(), server, report));
}

}  // namespace bps

#include "scheduler/job/recovery.h"

#include <fmt/format.h>

#include <algorithm>

#include "scheduler/tensors/reported_tensors.h"
#include "scheduler/text.h"

namespace bps {

bool Recovery::Reports::any_started() const {
  return std::any_of(workers.begin(), workers.end(),
                     [](const auto& entry) { return entry.second.started(); });
}

void Recovery::worker_back(Rank rank, WorkerReport report) {
  reports_.dead_workers.erase(rank);
  if (report.started()) note_absent(report);
  reports_.has_started = reports_.has_started || report.started();
  reports_.workers.insert_or_assign(rank, std::move(report));
}

Status Recovery::server_back(ServerId server, const RunReport& report) {
  if (report.open.job != run_.name()) return contradiction("the name of a job");
  servers_.adopt(server);
  std::erase_if(reports_.dead_servers, [&](const auto& entry) { return entry.first.id == server; });
  reports_.servers.insert_or_assign(server, report);
  return {};
}

void Recovery::server_died(const ServerRecord& server, const std::string& how) {
  servers_.forget(server.id);
  reports_.servers.erase(server.id);
  std::erase_if(reports_.dead_servers, [&](const auto& entry) { return entry.first.id == server.id; });
  reports_.dead_servers.emplace_back(server, how);
}

// Workers who were there, and may not be any more. That servers were there only servers can say: the run
// waits for those of its lanes, and nothing else is made of them.
void Recovery::note_absent(const WorkerReport& report) {
  for (const Member& member : report.start->members) {
    if (run_.membership.find(member.rank) != nullptr) continue;
    run_.membership.expect(member);
    run_.outbox.expect({run_.id, member.incarnation, member.rank});
  }
  for (const LaneTarget& lane : report.start->lanes)
    run_.outbox.number_taken(lane.server);
}

bool Recovery::is_complete(TimePoint now) {
  note_left();
  const Reports& known = reports_;
  bool started = false;
  for (const auto& [rank, report] : known.workers) {
    if (!report.started()) continue;
    started = true;
    for (const LaneTarget& lane : report.start->lanes) {
      if (is_closed(lane) || is_dead(lane)) continue;
      const ServerRecord* server = server_of(lane);
      // One that nobody has seen may come until the deadline; one that has been here is back or dead soon.
      if (server == nullptr ? now < deadline_ : server->peer.value == 0) return false;
    }
  }
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (!worker.gone && known.workers.count(rank) == 0 && known.dead_workers.count(rank) == 0) return false;
  }
  return started || run_.membership.workers().size() == run_.membership.world_size() || now >= deadline_;
}

void Recovery::gather_again() {
  for (const auto& [rank, how] : reports_.dead_workers)
    run_.membership.remove(rank);
  // Who is there has not left, whatever servers say.
  for (auto& [rank, worker] : run_.membership.workers())
    worker.left = worker.gone = worker.left && worker.peer.value == 0;
  std::erase_if(run_.membership.workers(), [](const auto& entry) { return entry.second.left; });
}

// Who has left is not missed, whether it comes back or not.
void Recovery::note_left() {
  for (const auto& [server, report] : reports_.servers) {
    for (const auto& [rank, lingers] : report.left) {
      Worker* worker = run_.membership.find(rank);
      if (worker == nullptr) continue;
      worker->left = true;
      worker->gone = worker->gone || !lingers;
    }
  }
}

// Whom any report leaves out the job has gone on without, or was about to: it is told again with a new
// generation, and a process that comes back for such a rank is not let in.
void Recovery::note_losses() {
  const auto leave_out = [&](const std::vector<Member>& members) {
    for (const auto& [rank, worker] : run_.membership.workers()) {
      const bool listed =
          std::any_of(members.begin(), members.end(),
                      [&, missing = worker.rank](const Member& member) { return member.rank == missing; });
      if (listed || worker.left) continue;
      reports_.workers.erase(rank);
      if (!reports_.dead_workers.emplace(rank, "it was lost before the scheduler was started again").second)
        continue;
      run_.outbox.send(worker.peer,
                       Refused{ErrorCode::peer_lost, "you were declared dead before", kRestartAdvice});
    }
  };
  Generation generation = losses_.generation();
  for (const auto& [rank, report] : std::map<Rank, WorkerReport>(reports_.workers)) {
    if (!report.started()) continue;
    generation = std::max(generation, report.start->generation);
    leave_out(report.start->members);
  }
  for (const auto& [server, report] : reports_.servers) {
    generation = std::max(generation, report.open.generation);
    leave_out(report.open.members);
  }
  losses_.restore(generation);
}

// By what any worker says.
bool Recovery::is_closed(const LaneTarget& lane) const {
  for (const auto& [rank, report] : reports_.workers) {
    for (const LaneIndex index : report.end.closed) {
      if (report.start->lanes[index.value] == lane) return true;
    }
  }
  return false;
}

bool Recovery::is_dead(const LaneTarget& lane) const {
  return std::any_of(reports_.dead_servers.begin(), reports_.dead_servers.end(), [&](const auto& entry) {
    return entry.first.id == lane.server && entry.first.incarnation == lane.incarnation;
  });
}

// Null: it has not come, or another one has its number.
const ServerRecord* Recovery::server_of(const LaneTarget& lane) const {
  const ServerRecord* server = run_.servers.find(lane.server);
  return server != nullptr && server->incarnation == lane.incarnation ? server : nullptr;
}

Status Recovery::check_majority() const {
  std::set<Incarnation> servers;
  std::set<Incarnation> servers_back;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_.is_retired(i)) continue;
    servers.insert(lanes_[i].incarnation);
    const bool is_back = server_of(lanes_[i]) != nullptr && reports_.servers.count(lanes_[i].server) != 0;
    if (is_back) servers_back.insert(lanes_[i].incarnation);
  }
  std::size_t nodes = servers.size();
  std::size_t back = servers_back.size();
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (worker.gone) continue;
    ++nodes;
    if (reports_.workers.count(rank) != 0 && reports_.dead_workers.count(rank) == 0) ++back;
  }
  if (2 * back > nodes) return {};
  return make_error(
      ErrorCode::peer_lost,
      fmt::format("job {} cannot go on after the scheduler was started again: only {} of its {} workers and "
                  "servers have come back",
                  run_.name(), back, nodes),
      "if another scheduler runs, stop it; then start the job again");
}

// All must say the same of who sums with whom.
Status Recovery::restore_groups() {
  std::map<Rank, const Member*> known;
  const auto fits = [&](const std::vector<Member>& members) {
    return std::all_of(members.begin(), members.end(), [&](const Member& member) {
      const Member& first = *known.emplace(member.rank, &member).first->second;
      return first.leader == member.leader && first.group_rank == member.group_rank &&
             first.weight == member.weight;
    });
  };
  for (const auto& [rank, report] : reports_.workers) {
    if (report.started() && !fits(report.start->members)) return contradiction(run_.membership.name_of(rank));
  }
  for (const auto& [server, report] : reports_.servers) {
    if (!fits(report.open.members))
      return contradiction(fmt::format("server {}", server.value), ErrorCode::peer_lost);
  }
  for (const auto& [rank, member] : known)
    run_.membership.restore_group(*member);
  return {};
}

Status Recovery::restore() {
  note_losses();
  if (Status status = restore_groups(); !status) return status;
  const WorkerReport* newest = nullptr;
  const std::vector<LaneTarget>* longest = nullptr;
  Epoch epoch;
  for (const auto& [rank, report] : reports_.workers) {
    if (!report.started()) continue;
    if (newest == nullptr || report.epoch() > newest->epoch()) newest = &report;
    if (longest == nullptr || report.start->lanes.size() > longest->size()) longest = &report.start->lanes;
    epoch = std::max(epoch, report.epoch());
  }
  for (const auto& [server, report] : reports_.servers)
    epoch = std::max(epoch, report.open.epoch);
  if (newest == nullptr)
    return make_error(ErrorCode::peer_lost, "no worker of it has come back to the scheduler", kRestartAdvice);
  lanes_.restore(*longest, epoch);
  for (const auto& [rank, report] : reports_.workers) {
    if (!report.started()) continue;
    const JobStart& start = *report.start;
    if (start.partition_bytes != newest->start->partition_bytes ||
        !std::equal(start.lanes.begin(), start.lanes.end(), lanes_.all().begin()))
      return contradiction(run_.membership.name_of(rank));
    for (const LaneIndex lane : report.end.closed)
      lanes_.retire(lane.value);
    for (const Rank closing : report.end.closing) {
      if (Worker* worker = run_.membership.find(closing)) worker->left = true;
    }
  }
  if (Status status = check_majority(); !status) return status;
  retire_lost();
  settle_used();
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (!lanes_.is_retired(i) && !servers_.uses(lanes_[i].server))
      return contradiction(to_string(*run_.servers.find(lanes_[i].server)), ErrorCode::peer_lost);
  }
  reports_.known_lanes = lanes_.size();
  lanes_.add(servers_.used(), servers_.unwilling(), true);
  for (std::size_t i = reports_.known_lanes; i < lanes_.size(); ++i) {
    if (reports_.servers.count(lanes_[i].server) != 0) servers_.adopt(lanes_[i].server);  // it is open there
  }
  if (lanes_.retired_count() == lanes_.size()) {
    return make_error(ErrorCode::peer_lost,
                      fmt::format("no server of job {} has come back to the scheduler", run_.name()),
                      kRestartAdvice);
  }
  return restore_tensors(*newest);
}

// Lanes to servers that are not there.
void Recovery::retire_lost() {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const LaneTarget& lane = lanes_[i];
    if (lanes_.is_retired(i) || server_of(lane) != nullptr) continue;
    lanes_.retire(i);
    if (is_dead(lane)) continue;
    ServerRecord server;
    server.id = lane.server;
    server.incarnation = lane.incarnation;
    server.host = lane.host;
    server.endpoint = lane.endpoint;
    const char* const how = "it has not come back since the scheduler was started again";
    run_.outbox.log(LogLevel::warn,
                    fmt::format("{} of job {} is gone: {}", to_string(server), run_.name(), how));
    reports_.dead_servers.emplace_back(std::move(server), how);
  }
}

// Of the servers that know the run, those that still have a lane.
void Recovery::settle_used() {
  for (const ServerId server : servers_.take_used()) {
    bool has_lane = false;
    bool had_lane = false;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      if (lanes_[i].server != server) continue;
      had_lane = true;
      has_lane = has_lane || !lanes_.is_retired(i);
    }
    if (has_lane) {
      servers_.adopt(server);
    } else if (had_lane) {
      // Declared dead before: what it has is of no use. It may come in like a new one.
      if (const ServerRecord* record = run_.servers.find(server)) servers_.let_go(*record);
      reports_.servers.erase(server);
    }
    // Else it was just being welcomed, and is again.
  }
}

Status Recovery::restore_tensors(const WorkerReport& newest) {
  tensors_.open(newest.start->partition_bytes, lanes_.place({}));
  for (const auto& [id, known] : newest.tensors) {
    if (Status status = tensors_.catalog().restore(known, Rank{}); !status) return status;
  }
  for (const auto& [rank, report] : reports_.workers) {
    for (const auto& [id, known] : report.tensors) {
      if (Status status = tensors_.catalog().restore(known, rank); !status) return status;
      tensors_.catalog().note_declared(id, rank);
    }
  }
  for (const auto& [server, report] : reports_.servers) {
    for (const auto& [id, held] : report.tensors) {
      if (is_known(tensors_.catalog(), held)) continue;
      PartitionId past{};
      for (const PartitionSlice& slice : held.partitions)
        past = std::max(past, slice.partition.next());
      tensors_.catalog().skip(id.next(), past);
    }
  }
  tensors_.catalog().restored();
  restore_barriers();
  return {};
}

// Partitions that were on their way from a server that is gone stay where they had got to, if that server has
// come back. Who was only to give them away keeps them: no worker knows of it.
void Recovery::adopt_partitions() {
  std::map<std::pair<ServerId, std::uint32_t>, LaneIndex> lane_of;
  for (std::size_t i = 0; i < lanes_.size(); ++i)
    lane_of[{lanes_[i].server, lanes_[i].shard}] = LaneIndex{static_cast<std::uint32_t>(i)};
  for (const auto& [server, report] : reports_.servers) {
    for (const auto& [id, held] : report.tensors) {
      if (!is_known(tensors_.catalog(), held)) continue;
      for (const PartitionSlice& slice : held.partitions) {
        const LaneIndex owner = tensors_.catalog().owner_of(id, slice.partition);
        const auto here = lane_of.find({server, slice.shard});
        if (lanes_[owner.value].server == server || here == lane_of.end()) continue;
        if (lanes_.is_retired(here->second.value) || !lanes_.is_retired(owner.value)) continue;
        tensors_.catalog().give(id, slice.partition, here->second);
      }
    }
  }
}

bool Recovery::differs(const WorkerReport& report) const {
  if (report.epoch() != lanes_.epoch() || report.start->lanes.size() != lanes_.size()) return true;
  if (report.end.closed.size() != lanes_.retired_count()) return true;
  return !news_for(tensors_.catalog(), report, true).empty();
}

// How far each rank is.
void Recovery::restore_barriers() {
  std::uint64_t done = 0;
  for (const auto& [rank, report] : reports_.workers)
    done = std::max(done, report.end.barriers_done);
  std::vector<std::uint64_t> arrived(run_.membership.world_size(), done);
  for (const auto& [rank, report] : reports_.workers)
    arrived[rank.value] = std::max(done, report.end.barriers_arrived);
  barriers_.restore(std::move(arrived));
  for (Rank rank{0}; rank.value < run_.membership.world_size(); rank = rank.next()) {
    if (run_.membership.find(rank) == nullptr) barriers_.drop(rank);  // lost long ago
  }
}

bool Recovery::is_anybody_behind(const std::set<Rank>& late) {
  bool is_behind = !reports_.dead_servers.empty() || lanes_.size() > reports_.known_lanes;
  for (const auto& [server, report] : reports_.servers)
    is_behind = is_behind || report.open.epoch != lanes_.epoch();
  adopt_partitions();
  for (const auto& [rank, report] : reports_.workers)
    is_behind = is_behind || (late.count(rank) == 0 && differs(report));
  return is_behind;
}

}  // namespace bps

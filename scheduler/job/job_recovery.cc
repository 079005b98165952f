// What a new scheduler makes of the reports about a run that began before it did: decision 0013.
#include <fmt/format.h>

#include <algorithm>

#include "scheduler/job/job.h"
#include "scheduler/text.h"

namespace bps {

// Who has left is not missed, whether it comes back or not.
void Job::note_left() {
  for (const auto& [server, report] : recovery_->servers) {
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
void Job::note_losses() {
  const auto leave_out = [&](const std::vector<Member>& members) {
    for (const auto& [rank, worker] : run_.membership.workers()) {
      const bool listed =
          std::any_of(members.begin(), members.end(),
                      [&, missing = worker.rank](const Member& member) { return member.rank == missing; });
      if (listed || worker.left) continue;
      recovery_->workers.erase(rank);
      if (!recovery_->dead_workers.emplace(rank, "it was lost before the scheduler was started again").second)
        continue;
      run_.outbox.send(worker.peer,
                       Refused{ErrorCode::peer_lost, "you were declared dead before", kRestartAdvice});
    }
  };
  Generation generation = losses_.generation();
  for (const auto& [rank, report] : std::map<Rank, WorkerReport>(recovery_->workers)) {
    if (!report.started()) continue;
    generation = std::max(generation, report.start->generation);
    leave_out(report.start->members);
  }
  for (const auto& [server, report] : recovery_->servers) {
    generation = std::max(generation, report.open.generation);
    leave_out(report.open.members);
  }
  losses_.restore(generation);
}

bool Job::is_recovered(TimePoint now) const {
  const Recovery& known = *recovery_;
  bool started = false;
  for (const auto& [rank, report] : known.workers) {
    if (!report.started()) continue;
    started = true;
    for (const LaneTarget& lane : report.start->lanes) {
      if (is_closed(lane) || is_dead(lane)) continue;
      const ServerRecord* server = server_of(lane);
      // One that nobody has seen may come until the deadline; one that has been here is back or dead soon.
      if (server == nullptr ? now < known.deadline : server->peer.value == 0) return false;
    }
  }
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (!worker.gone && known.workers.count(rank) == 0 && known.dead_workers.count(rank) == 0) return false;
  }
  return started || run_.membership.workers().size() == run_.membership.world_size() || now >= known.deadline;
}

// By what any worker says.
bool Job::is_closed(const LaneTarget& lane) const {
  for (const auto& [rank, report] : recovery_->workers) {
    for (const LaneIndex index : report.end.closed) {
      if (report.start->lanes[index.value] == lane) return true;
    }
  }
  return false;
}

bool Job::is_dead(const LaneTarget& lane) const {
  return std::any_of(recovery_->dead_servers.begin(), recovery_->dead_servers.end(), [&](const auto& entry) {
    return entry.first.id == lane.server && entry.first.incarnation == lane.incarnation;
  });
}

// Null: it has not come, or another one has its number.
const ServerRecord* Job::server_of(const LaneTarget& lane) const {
  const ServerRecord* server = run_.servers.find(lane.server);
  return server != nullptr && server->incarnation == lane.incarnation ? server : nullptr;
}

Status Job::check_majority() const {
  std::set<Incarnation> servers;
  std::set<Incarnation> servers_back;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_.is_retired(i)) continue;
    servers.insert(lanes_[i].incarnation);
    const bool is_back = server_of(lanes_[i]) != nullptr && recovery_->servers.count(lanes_[i].server) != 0;
    if (is_back) servers_back.insert(lanes_[i].incarnation);
  }
  std::size_t nodes = servers.size();
  std::size_t back = servers_back.size();
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (worker.gone) continue;
    ++nodes;
    if (recovery_->workers.count(rank) != 0 && recovery_->dead_workers.count(rank) == 0) ++back;
  }
  if (2 * back > nodes) return {};
  return make_error(
      ErrorCode::peer_lost,
      fmt::format("job {} cannot go on after the scheduler was started again: only {} of its {} workers and "
                  "servers have come back",
                  name(), back, nodes),
      "if another scheduler runs, stop it; then start the job again");
}

void Job::try_recover(TimePoint now) {
  if (phase_ != Phase::recovering) return;
  note_left();
  if (!is_recovered(now)) return;
  const bool started = std::any_of(recovery_->workers.begin(), recovery_->workers.end(),
                                   [](const auto& entry) { return entry.second.started(); });
  if (!started && recovery_->has_started) {
    return fail(
        make_error(ErrorCode::peer_lost,
                   fmt::format("all workers of job {} that had started and come back are gone again", name()),
                   kRestartAdvice));
  }
  const Status status = started ? restore() : gather_again();
  if (!status && !ended()) return fail(status.error());
  if (ended()) return;
  Recovery known = std::move(*recovery_);
  recovery_.reset();
  run_.outbox.log(LogLevel::info, fmt::format("job {} goes on: {} workers and {} servers have come back",
                                              name(), known.workers.size(), known.servers.size()));
  if (started) go_on(known);
  if (ended()) return;
  maybe_start();
}

// Nobody had been told to start.
Status Job::gather_again() {
  phase_ = Phase::gathering;
  servers_.let_go_of_all({});
  for (const auto& [rank, how] : recovery_->dead_workers)
    run_.membership.remove(rank);
  // Who is there has not left, whatever servers say.
  for (auto& [rank, worker] : run_.membership.workers())
    worker.left = worker.gone = worker.left && worker.peer.value == 0;
  std::erase_if(run_.membership.workers(), [](const auto& entry) { return entry.second.left; });
  if (run_.membership.workers().empty()) end({});
  return {};
}

// All must say the same of who sums with whom.
Status Job::restore_groups() {
  std::map<Rank, const Member*> known;
  const auto fits = [&](const std::vector<Member>& members) {
    return std::all_of(members.begin(), members.end(), [&](const Member& member) {
      const Member& first = *known.emplace(member.rank, &member).first->second;
      return first.leader == member.leader && first.group_rank == member.group_rank &&
             first.weight == member.weight;
    });
  };
  for (const auto& [rank, report] : recovery_->workers) {
    if (report.started() && !fits(report.start->members)) return contradiction(run_.membership.name_of(rank));
  }
  for (const auto& [server, report] : recovery_->servers) {
    if (!fits(report.open.members))
      return contradiction(fmt::format("server {}", server.value), ErrorCode::peer_lost);
  }
  for (const auto& [rank, member] : known)
    run_.membership.restore_group(*member);
  return {};
}

Status Job::restore() {
  note_losses();
  if (Status status = restore_groups(); !status) return status;
  const WorkerReport* newest = nullptr;
  const std::vector<LaneTarget>* longest = nullptr;
  Epoch epoch;
  for (const auto& [rank, report] : recovery_->workers) {
    if (!report.started()) continue;
    if (newest == nullptr || report.epoch() > newest->epoch()) newest = &report;
    if (longest == nullptr || report.start->lanes.size() > longest->size()) longest = &report.start->lanes;
    epoch = std::max(epoch, report.epoch());
  }
  for (const auto& [server, report] : recovery_->servers)
    epoch = std::max(epoch, report.open.epoch);
  if (newest == nullptr)
    return make_error(ErrorCode::peer_lost, "no worker of it has come back to the scheduler", kRestartAdvice);
  lanes_.restore(*longest, epoch);
  for (const auto& [rank, report] : recovery_->workers) {
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
  phase_ = Phase::running;
  settle_used();
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (!lanes_.is_retired(i) && !servers_.uses(lanes_[i].server))
      return contradiction(to_string(*run_.servers.find(lanes_[i].server)), ErrorCode::peer_lost);
  }
  recovery_->known_lanes = lanes_.size();
  lanes_.add(servers_.used(), servers_.unwilling(), true);
  for (std::size_t i = recovery_->known_lanes; i < lanes_.size(); ++i) {
    if (recovery_->servers.count(lanes_[i].server) != 0)
      servers_.adopt(lanes_[i].server);  // it is open there
  }
  if (lanes_.retired_count() == lanes_.size()) {
    return make_error(ErrorCode::peer_lost,
                      fmt::format("no server of job {} has come back to the scheduler", name()),
                      kRestartAdvice);
  }
  return restore_tensors(*newest);
}

// Lanes to servers that are not there.
void Job::retire_lost() {
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
    run_.outbox.log(LogLevel::warn, fmt::format("{} of job {} is gone: {}", to_string(server), name(), how));
    recovery_->dead_servers.emplace_back(std::move(server), how);
  }
}

// Of the servers that know the run, those that still have a lane.
void Job::settle_used() {
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
      recovery_->servers.erase(server);
    }
    // Else it was just being welcomed, and is again.
  }
}

Status Job::restore_tensors(const WorkerReport& newest) {
  tensors_.open(newest.start->partition_bytes, lanes_.place({}));
  for (const auto& [id, known] : newest.tensors) {
    if (Status status = tensors_.table().restore(known, Rank{}); !status) return status;
  }
  for (const auto& [rank, report] : recovery_->workers) {
    for (const auto& [id, known] : report.tensors) {
      if (Status status = tensors_.table().restore(known, rank); !status) return status;
    }
  }
  for (const auto& [server, report] : recovery_->servers) {
    for (const auto& [id, held] : report.tensors) {
      if (tensors_.table().is_known(held)) continue;
      PartitionId past{};
      for (const PartitionSlice& slice : held.partitions)
        past = std::max(past, slice.partition.next());
      tensors_.table().skip(id.next(), past);
    }
  }
  tensors_.table().restored();
  std::uint64_t done = 0;
  for (const auto& [rank, report] : recovery_->workers)
    done = std::max(done, report.end.barriers_done);
  std::vector<std::uint64_t> arrived(run_.membership.world_size(), done);
  for (const auto& [rank, report] : recovery_->workers)
    arrived[rank.value] = std::max(done, report.end.barriers_arrived);
  barriers_.restore(std::move(arrived));
  for (Rank rank{0}; rank.value < run_.membership.world_size(); rank = rank.next()) {
    if (run_.membership.find(rank) == nullptr) barriers_.drop(rank);  // lost long ago
  }
  return {};
}

// Partitions that were on their way from a server that is gone stay where they had got to, if that server has
// come back. Who was only to give them away keeps them: no worker knows of it.
void Job::adopt_partitions(const Recovery& known) {
  std::map<std::pair<ServerId, std::uint32_t>, LaneIndex> lane_of;
  for (std::size_t i = 0; i < lanes_.size(); ++i)
    lane_of[{lanes_[i].server, lanes_[i].shard}] = LaneIndex{static_cast<std::uint32_t>(i)};
  for (const auto& [server, report] : known.servers) {
    for (const auto& [id, held] : report.tensors) {
      if (!tensors_.table().is_known(held)) continue;
      for (const PartitionSlice& slice : held.partitions) {
        const LaneIndex owner = tensors_.table().owner_of(id, slice.partition);
        const auto here = lane_of.find({server, slice.shard});
        if (lanes_[owner.value].server == server || here == lane_of.end()) continue;
        if (lanes_.is_retired(here->second.value) || !lanes_.is_retired(owner.value)) continue;
        tensors_.table().give(id, slice.partition, here->second);
      }
    }
  }
}

bool Job::differs(const WorkerReport& report) const {
  if (report.epoch() != lanes_.epoch() || report.start->lanes.size() != lanes_.size()) return true;
  if (report.end.closed.size() != lanes_.retired_count()) return true;
  return !tensors_.table().news_for(report, true).empty();
}

void Job::go_on(Recovery& known) {
  std::set<Rank> late;
  for (auto& [rank, report] : known.workers) {
    if (report.started()) continue;
    report.start = catch_up_.start_late(*run_.membership.find(rank));
    late.insert(rank);
  }
  for (const auto& [server, how] : known.dead_servers) {
    if (const auto why = handoff_.obstacle(server.id)) {
      return fail(make_error(
          why->code,
          fmt::format("{} of job {} is gone: {}; {}", to_string(server), name(), how, why->message),
          why->advice));
    }
  }
  bool moves = !known.dead_servers.empty() || lanes_.size() > known.known_lanes;
  for (const auto& [server, report] : known.servers)
    moves = moves || report.open.epoch != lanes_.epoch();
  adopt_partitions(known);
  for (const auto& [rank, report] : known.workers)
    moves = moves || (late.count(rank) == 0 && differs(report));
  for (const auto& [server, report] : known.servers) {
    if (!servers_.uses(server)) continue;
    catch_up_.compare(server, report);
    catch_up_.drop_unwanted(server, report);
  }
  if (moves) {
    catch_up_.put_off(known.workers);
    conclude(
        handoff_.resume(known.known_lanes, fmt::format("job {} goes on with another scheduler", name())));
  } else {
    for (const auto& [rank, report] : known.workers)
      catch_up_.send(*run_.membership.find(rank), report);
  }
  if (ended()) return;
  for (const auto& [server, report] : known.servers) {
    if (servers_.uses(server)) handoff_.also_wait_for(losses_.catch_up(server, report.open));
  }
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (worker.left) tensors_.table().leave(rank);
    if (worker.left) barriers_.leave(rank);
  }
  if (run_.membership.all_left()) return end({});
  for (auto& [rank, worker] : run_.membership.workers()) {
    if (worker.left && !worker.gone) departures_.begin(rank);
  }
  for (const auto& [rank, how] : known.dead_workers)
    worker_died(rank, how);
}

}  // namespace bps

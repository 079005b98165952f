#include "scheduler/job/recovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "proto/wire/member_groups.h"
#include "scheduler/find_from.h"
#include "scheduler/tensors/reported_tensors.h"
#include "scheduler/text.h"

namespace bps {

bool Recovery::Reports::any_started() const {
  return std::any_of(workers.begin(), workers.end(),
                     [](const auto& entry) { return entry.second.started(); });
}

void Recovery::worker_back(Rank rank, WorkerReport report) {
  reports_.dead_workers.erase(rank);
  if (report.started()) {
    reports_.has_started = true;
    for (const LaneTarget& lane : report.start->lanes)
      run_.outbox.number_taken(lane.server);
  }
  reports_.workers.insert_or_assign(rank, std::move(report));
  awaited_.reset();  // it may have closed that lane
  note_absent();
}

Status Recovery::server_back(ServerId server, const RunReport& report) {
  if (report.open.job != run_.name()) return contradiction("the name of a job");
  std::set<Incarnation> lives;
  for (const Member& member : report.open.members) {
    const bool is_new = lives.insert(member.incarnation).second;
    if (member.rank.value >= run_.membership.world_size() || member.incarnation.value == 0 || !is_new)
      return contradiction("a member");
  }
  if (!check_groups(report.open.members)) return contradiction("a group");
  servers_.adopt(server);
  std::erase_if(reports_.dead_servers, [&](const auto& entry) { return entry.first.id == server; });
  reports_.servers.insert_or_assign(server, report);
  noted_.erase(server);
  for (const auto& [rank, lingers] : report.left)
    note_left(rank);
  note_absent();
  return {};
}

void Recovery::server_died(const ServerRecord& server, const std::string& how) {
  servers_.forget(server.id);
  reports_.servers.erase(server.id);
  std::erase_if(reports_.dead_servers, [&](const auto& entry) { return entry.first.id == server.id; });
  reports_.dead_servers.emplace_back(server, how);
}

// Members who were there, and may not be any more: of a run that had started, by what its servers say. That
// servers were there workers say: the run waits for those of its lanes, and nothing else is made of them.
void Recovery::note_absent() {
  if (!reports_.has_started) return;
  for (const auto& [server, report] : reports_.servers) {
    if (!noted_.insert(server).second) continue;
    for (const Member& member : report.open.members) {
      if (run_.membership.find(member.rank) != nullptr) continue;
      run_.membership.expect(member);
      run_.outbox.expect({run_.id, member.incarnation, member.rank});
      note_left(member.rank);
    }
  }
}

bool Recovery::is_missed(Rank rank) const {
  const Worker* worker = run_.membership.find(rank);
  return worker != nullptr && !worker->gone && reports_.workers.count(rank) == 0 &&
         reports_.dead_workers.count(rank) == 0;
}

std::optional<Rank> Recovery::find_missed() const {
  return find_from(run_.membership.workers(), missed_.value_or(Rank{}),
                   [&](const auto& entry) { return is_missed(entry.first); });
}

// One that nobody has seen may come until the deadline; one that has been here is back or dead soon.
bool Recovery::awaits_server(const LaneTarget& lane, TimePoint now) const {
  if (is_dead(lane)) return false;
  const ServerRecord* server = server_of(lane);
  return server == nullptr ? now < deadline_ : server->peer.value == 0;
}

// Asked with each message: it answers at once while somebody is missed.
bool Recovery::is_complete(TimePoint now) {
  if (missed_ && is_missed(*missed_)) return false;
  if (!missed_ && awaited_ && awaits_server(*awaited_, now)) return false;
  missed_ = find_missed();
  if (missed_) return false;
  bool started = false;
  // All lists of lanes are beginnings of one: restore() makes sure of that.
  std::vector<bool> is_settled = closed_lanes();
  for (const auto& [rank, report] : reports_.workers) {
    if (!report.started()) continue;
    started = true;
    const std::vector<LaneTarget>& lanes = report.start->lanes;
    if (lanes.size() > is_settled.size()) is_settled.resize(lanes.size());
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      if (is_settled[i]) continue;
      is_settled[i] = true;
      if (!awaits_server(lanes[i], now)) continue;
      awaited_ = lanes[i];
      return false;
    }
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
void Recovery::note_left(Rank rank) {
  Worker* const worker = run_.membership.find(rank);
  if (worker == nullptr) return;
  for (const auto& [server, report] : reports_.servers) {
    const auto left = report.left.find(rank);
    if (left == report.left.end()) continue;
    worker->left = true;
    worker->gone = worker->gone || !left->second;
  }
}

// A rank that some server's report leaves out is one that the job has lost, or was about to: unless all
// workers know, it is told again with a new generation; and a process that comes back for such a rank is not
// let in. Servers hear of a loss before workers do.
Status Recovery::note_losses() {
  Generation generation = losses_.generation();
  std::map<Rank, std::size_t> lists;  // of servers, that have the rank
  for (const auto& [server, report] : reports_.servers) {
    generation = std::max(generation, report.open.generation);
    for (const Member& member : report.open.members)
      ++lists[member.rank];
  }
  const std::size_t servers = reports_.servers.size();
  const auto members = static_cast<std::size_t>(
      std::count_if(lists.begin(), lists.end(), [&](const auto& entry) { return entry.second == servers; }));
  bool is_known = true;
  for (const auto& [rank, report] : reports_.workers) {
    if (!report.started()) continue;
    generation = std::max(generation, report.start->generation);
    is_known = is_known && report.start->workers == members;
    // It has heard of a loss that no server knows.
    if (report.start->workers < members) return contradiction(run_.membership.name_of(rank));
  }
  if (Status status = note_unknown(); !status) return status;
  losses_.restore(reports_.unknown.empty() ? generation : generation.next());
  std::vector<Rank> lost;
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (!worker.left && lists[rank] < servers) lost.push_back(rank);
  }
  for (const Rank rank : lost) {
    const PeerId peer = run_.membership.find(rank)->peer;
    reports_.workers.erase(rank);
    const bool is_new =
        reports_.dead_workers.emplace(rank, "it was lost before the scheduler was started again").second;
    if (is_new)
      run_.outbox.send(peer, Refused{ErrorCode::peer_lost, "you were declared dead before", kRestartAdvice});
    if (peer.value != 0 || !is_known) continue;
    reports_.dead_workers.erase(rank);
    run_.membership.remove(rank);
  }
  return {};
}

// As many as were there by what a worker says.
std::size_t Recovery::most_members() const {
  std::size_t members = 0;
  for (const auto& [rank, report] : reports_.workers) {
    if (report.started()) members = std::max<std::size_t>(members, report.start->workers);
  }
  return members;
}

// More than anybody can name now: servers have heard of a loss, and not all workers; or no server is left
// that knew the run. With ranks that sum on their hosts it is not known then who is lost with them.
Status Recovery::note_unknown() {
  if (most_members() <= run_.membership.workers().size()) return {};
  reports_.unknown = run_.membership.missing();
  const HelloWorker& settings = run_.membership.settings();
  const bool shrinks = settings.worker_loss == WorkerLoss::shrink;
  const bool sums_alone = settings.local_group == LocalGrouping::off;
  if (shrinks && (sums_alone || !reports_.servers.empty())) return {};
  return make_error(
      ErrorCode::peer_lost,
      fmt::format("{} of job {} {} not come back since the scheduler was started again, and no "
                  "server is there that knew {}",
                  ranks_text(reports_.unknown), run_.name(), reports_.unknown.size() == 1 ? "has" : "have",
                  reports_.unknown.size() == 1 ? "it" : "them"),
      kRestartAdvice);
}

// By what any worker says.
std::vector<bool> Recovery::closed_lanes() const {
  std::vector<bool> closed;
  for (const auto& [rank, report] : reports_.workers) {
    for (const LaneIndex lane : report.end.closed) {
      if (lane.value >= closed.size()) closed.resize(lane.value + 1);
      closed[lane.value] = true;
    }
  }
  return closed;
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
  // Without servers nobody says who the others are.
  const std::size_t known = run_.membership.workers().size();
  nodes += std::max(most_members(), known) - known;
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
  if (Status status = note_losses(); !status) return status;
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
  return restore_tensors(newest->start->partition_bytes);
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

// Owners are those of the newest epoch in which a rank that shares the tensor is.
Status Recovery::restore_tensors(std::uint64_t partition_bytes) {
  tensors_.open(partition_bytes, lanes_.place({}));
  TensorCatalog& catalog = tensors_.catalog();
  const std::set<TensorId> ended = ended_tensors();
  std::multimap<Epoch, Rank, std::greater<>> newest_first;
  for (const auto& [rank, report] : reports_.workers) {
    catalog.skip(report.end.next_tensor, report.end.next_partition);
    if (report.started()) newest_first.emplace(report.epoch(), rank);
  }
  for (const auto& [epoch, rank] : newest_first) {
    const WorkerReport& report = reports_.workers.at(rank);
    for (const auto& [id, known] : report.tensors) {
      if (ended.contains(id)) continue;
      if (Status status = catalog.restore(known, rank); !status) return status;
      catalog.note_declared(id, rank);
      if (report.dropped.contains(id)) (void)tensors_.drops().note(rank, {id});  // it is there
    }
  }
  for (const auto& [server, report] : reports_.servers) {
    for (const auto& [id, held] : report.tensors) {
      if (is_known(catalog, held)) continue;
      PartitionId past{};
      for (const PartitionSlice& slice : held.partitions)
        past = std::max(past, slice.partition.next());
      catalog.skip(id.next(), past);
    }
  }
  catalog.restored();
  restore_barriers();
  return {};
}

// All that still have them have dropped them or have left, and no server has them: some have heard already
// that they have ended.
std::set<TensorId> Recovery::ended_tensors() const {
  std::set<TensorId> ended;
  std::set<TensorId> needed;
  for (const auto& [rank, report] : reports_.workers) {
    const bool has_left = run_.membership.find(rank)->left;
    for (const auto& [id, known] : report.tensors)
      (has_left || report.dropped.contains(id) ? ended : needed).insert(id);
  }
  for (const TensorId id : needed)
    ended.erase(id);
  for (const auto& [server, report] : reports_.servers) {
    for (const auto& [id, held] : report.tensors)
      ended.erase(id);
  }
  return ended;
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

bool Recovery::is_anybody_behind() {
  bool is_behind = !reports_.dead_servers.empty() || lanes_.size() > reports_.known_lanes;
  for (const auto& [server, report] : reports_.servers)
    is_behind = is_behind || report.open.epoch != lanes_.epoch();
  adopt_partitions();
  for (const auto& [rank, report] : reports_.workers)
    is_behind = is_behind || (report.started() && differs(report));
  return is_behind;
}

}  // namespace bps

// Workers and servers that come back to a run, and what they have missed: decision 0013.
#include <fmt/format.h>

#include <algorithm>

#include "proto/wire/member_groups.h"
#include "scheduler/job/job.h"
#include "scheduler/text.h"

namespace bps {
void Job::recover_until(TimePoint deadline) {
  phase_ = Phase::recovering;
  recovery_.emplace();
  recovery_->deadline = deadline;
}

Status Job::take_back(const HelloWorker& hello, std::string address, TimePoint join_deadline) {
  const Worker* known = run_.membership.find(hello.rank);
  if (known != nullptr && known->incarnation != hello.incarnation) {
    return make_error(ErrorCode::peer_lost,
                      fmt::format("another life of rank {} is in job {}", hello.rank.value, name()),
                      kRestartAdvice);
  }
  if (phase_ != Phase::recovering && phase_ != Phase::gathering) {
    if (known != nullptr && known->loss.empty()) return {};
    return make_error(ErrorCode::peer_lost,
                      fmt::format("rank {} of job {} comes back too late: the job has gone on without it",
                                  hello.rank.value, name()),
                      kRestartAdvice);
  }
  if (Error error = run_.membership.disagreement(hello); error.code != ErrorCode::ok) return error;
  const bool left = known != nullptr && known->left;
  const bool gone = known != nullptr && known->gone;
  run_.membership.admit(hello, hello.incarnation, PeerId{}, std::move(address), join_deadline);
  run_.membership.find(hello.rank)->left = left;
  run_.membership.find(hello.rank)->gone = gone;
  return {};
}

Status Job::worker_attached(Rank rank, PeerId peer, WorkerReport report) {
  if (ended()) return {};
  // The run has begun to gather again without it.
  if (run_.membership.find(rank) == nullptr) return contradiction("its run");
  Worker& worker = *run_.membership.find(rank);
  if (Status status = check(worker, report); !status) return status;
  if (phase_ == Phase::gathering || phase_ == Phase::opening) {
    if (report.started()) return contradiction("its start");
    worker.peer = peer;
    maybe_start();
    return {};
  }
  worker.peer = peer;
  if (phase_ == Phase::recovering) {
    recovery_->dead_workers.erase(rank);
    if (report.started()) note_absent(report);
    recovery_->has_started = recovery_->has_started || report.started();
    recovery_->workers.insert_or_assign(rank, std::move(report));
    return {};
  }
  if (worker.gone) run_.outbox.send(peer, Left{});
  if (!report.started()) report.start = start_late(worker);
  // What is not answered it asks again.
  tensors_.forget(rank);
  departures_.ask_again(rank, peer);
  if (move_) {
    behind_.insert_or_assign(rank, std::move(report));
  } else {
    catch_up(worker, report);
  }
  return {};
}

// Nothing of it is used before it fits what is known here.
Status Job::check(const Worker& worker, const WorkerReport& report) const {
  if (report.end.barriers_arrived - report.end.barriers_done > Barriers::kMaxAhead)
    return contradiction("its number of barriers");
  for (const Rank rank : report.end.closing) {
    if (rank.value >= run_.membership.world_size()) return contradiction("a rank");
  }
  if (!report.started()) return {};
  if (report.start->job_run != run_.id) return contradiction("its run");
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
  if (phase_ != Phase::running) return {};
  for (const Member& member : report.start->members) {
    if (!run_.membership.is_in_its_group(member)) return contradiction("a group");
  }
  if (report.epoch() > lanes_.epoch() || report.start->lanes.size() > lanes_.size())
    return contradiction("its epoch");
  for (const auto& [id, known] : report.tensors) {
    if (!tensors_.table().matches(known)) return contradiction("a tensor");
  }
  return {};
}

// What it would have had at the start. The rest is news.
JobStart Job::start_late(const Worker& worker) {
  JobStart start{run_.id,
                 losses_.first_generation(),
                 LaneTable::kFirstEpoch,
                 tensors_.table().partition_bytes(),
                 run_.membership.members(),
                 lanes_.all()};
  run_.outbox.send(worker.peer, start);
  return start;
}

// Workers who were there, and may not be any more. That servers were there only servers can say: the run
// waits for those of its lanes, and nothing else is made of them.
void Job::note_absent(const WorkerReport& report) {
  for (const Member& member : report.start->members) {
    if (run_.membership.find(member.rank) != nullptr) continue;
    run_.membership.expect(member);
    run_.outbox.expect({run_.id, member.incarnation, member.rank});
  }
  for (const LaneTarget& lane : report.start->lanes)
    run_.outbox.number_taken(lane.server);
}

Status Job::server_attached(ServerId server, const RunReport* report) {
  if (ended()) return {};
  if (phase_ == Phase::recovering) {
    if (report == nullptr) return {};
    if (report->open.job != name()) return contradiction("the name of a job");
    used_.insert(server);
    run_.servers.use(server, run_.id);
    std::erase_if(recovery_->dead_servers, [&](const auto& entry) { return entry.first.id == server; });
    recovery_->servers.insert_or_assign(server, *report);
    return {};
  }
  if (used_.count(server) == 0) {
    if (report != nullptr) run_.servers.send(server, JobEnded{run_.id, {}});
    run_.servers.release(server, run_.id);
    return {};
  }
  if (report == nullptr) return {};
  compare(server, *report);
  // What it is to give away it keeps until workers know.
  if (!move_ || move_->drained.count(server) == 0) drop_unwanted(server, *report);
  catch_up_losses(server, report->open);
  return {};
}

// What it has missed, besides requests.
void Job::compare(ServerId server, const RunReport& report) {
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (!worker.left || !worker.loss.empty()) continue;
    const auto known = report.left.find(rank);
    const bool lingers = !worker.gone;
    if (known == report.left.end() || (known->second && !lingers))
      run_.servers.send(server, WorkerLeft{run_.id, rank, lingers});
  }
}

void Job::drop_unwanted(ServerId server, const RunReport& report) {
  if (tensors_.is_open()) drop(server, tensors_.table().unwanted(server, report));
}

// ---- a worker that has missed something ----

void Job::catch_up(const Worker& worker, const WorkerReport& report) {
  for (TensorFailed& failed : tensors_.table().failures_for(report))
    run_.outbox.send(worker.peer, std::move(failed));
  const std::size_t lanes = report.start->lanes.size();
  losses_.catch_up(worker, report.start->generation);
  if (report.epoch() == lanes_.epoch()) {
    // The last pieces of what has moved in this epoch may be missing.
    const auto rest = tensors_.table().news_for(report, true);
    if (!rest.empty())
      send_moved(Moved{run_.id, lanes_.epoch(), "the rest of it", {}, {}, {}}, rest, worker.peer);
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
  send_moved(std::move(moved), tensors_.table().news_for(report, false), worker.peer);
}

}  // namespace bps

// Workers and servers that come back to a run, and what they have missed: decision 0013.
#include <fmt/format.h>

#include <algorithm>

#include "proto/wire/member_groups.h"
#include "scheduler/job/job.h"
#include "scheduler/text.h"

namespace bps {
void Job::recover_until(TimePoint deadline) {
  phase_ = Phase::recovering;
  recovery_.begin(deadline);
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
  if (Status status = catch_up_.check(worker, report, phase_ == Phase::running); !status) return status;
  if (phase_ == Phase::gathering || phase_ == Phase::opening) {
    if (report.started()) return contradiction("its start");
    worker.peer = peer;
    maybe_start();
    return {};
  }
  worker.peer = peer;
  if (phase_ == Phase::recovering) {
    recovery_.worker_back(rank, std::move(report));
    return {};
  }
  if (worker.gone) run_.outbox.send(peer, Left{});
  if (!report.started()) report.start = catch_up_.start_late(worker);
  // What is not answered it asks again.
  tensors_.forget(rank);
  departures_.ask_again(rank, peer);
  if (handoff_.is_moving()) {
    catch_up_.put_off(rank, std::move(report));
  } else {
    catch_up_.send(worker, report);
  }
  return {};
}

Status Job::server_attached(ServerId server, const RunReport* report) {
  if (ended()) return {};
  if (phase_ == Phase::recovering) {
    return report == nullptr ? Status{} : recovery_.server_back(server, *report);
  }
  if (!servers_.uses(server)) {
    if (report != nullptr) run_.servers.send(server, JobEnded{run_.id, {}});
    run_.servers.release(server, run_.id);
    return {};
  }
  if (report == nullptr) return {};
  catch_up_.compare(server, *report);
  // What it is to give away it keeps until workers know.
  if (!handoff_.is_leaving(server)) catch_up_.drop_unwanted(server, *report);
  handoff_.also_wait_for(losses_.catch_up(server, report->open));
  return {};
}

// ---- a worker that has missed something ----

}  // namespace bps

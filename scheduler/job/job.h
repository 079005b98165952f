// One run of a job, from its first worker to its end:
//
//   gathering   workers join, until all world_size and at least one server are there, or the join deadline is
//   opening     OpenJob is with the servers that the run will use; the set of workers is fixed
//   running     JobStart is out; tensors, barriers, leaves
//   recovering  of a run that began before this scheduler did: its workers and servers come back, and what
//               they say they were told becomes its state (decision 0013); then gathering or running
//   ended       all have left, or the run has failed: everyone has been told, and it is of no more use
//
// Job has the phases and wires its parts together; each part has its own header:
//
//   gathering   who has not come yet          handoff     partitions that get new owners (decision 0009)
//   membership  who is in it                  lanes       which lanes there are, in which epoch
//   servers     which servers take part       links       links that are cut (decision 0016)
//   tensors     what was declared             catch_up    what a node that comes back has missed
//   barriers    who has arrived               recovery    after a restart of the scheduler (decision 0013)
//   losses      who it goes on without        departures  workers that have left and linger
//   waits       what it waits for, for who asks
//
// From opening on, the death of a worker fails the run: every other worker gets JobFailed with an error that
// names who is gone, every server of it JobEnded. A job that is to shrink goes on once it is running
// (decision 0012). A run that is opening begins to open again without a server that dies.
//
// Owner: Runs. The core tells peers from workers, notices deaths, and forgets a run that has ended.
// Pure: sends through the Outbox. A Status that is returned is a violation of the protocol: the core
// drops that peer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "scheduler/handoff/handoff.h"
#include "scheduler/handoff/lane_table.h"
#include "scheduler/handoff/link_judge.h"
#include "scheduler/handoff/run_servers.h"
#include "scheduler/job/barrier_relay.h"
#include "scheduler/job/barriers.h"
#include "scheduler/job/catch_up.h"
#include "scheduler/job/departures.h"
#include "scheduler/job/gathering.h"
#include "scheduler/job/job_waits.h"
#include "scheduler/job/join_relay.h"
#include "scheduler/job/losses.h"
#include "scheduler/job/membership.h"
#include "scheduler/job/recovery.h"
#include "scheduler/job/run.h"
#include "scheduler/report.h"
#include "scheduler/server_table.h"
#include "scheduler/tensors/call_comparison.h"
#include "scheduler/tensors/tensor_catalog.h"
#include "scheduler/tensors/tensor_relay.h"

namespace bps {

class Job {
 public:
  using Phase = JobPhase;

  Job(const HelloWorker& first, JobRun run, const Term& term, TimePoint now, ServerTable& servers,
      Outbox& outbox, const JobOptions& options);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string& name() const { return run_.name(); }
  JobRun run() const { return run_.id; }
  Phase phase() const { return run_.phase; }
  bool ended() const { return run_.phase == Phase::ended; }
  // Why it ended; code ok = all workers left.
  const Error& end_error() const { return end_error_; }
  const Membership& membership() const { return run_.membership; }

  Membership::Decision decide(const HelloWorker& hello) const {
    return run_.membership.decide(hello, run_.phase == Phase::gathering);
  }
  // What decide() refused: Gathering::note_refused.
  void note_refused(TimePoint now, Rank rank, const Membership::Decision& refusal) {
    gathering_.note_refused(now, rank, refusal);
  }
  // Only what decide() admits. It waits for the others until `join_deadline`.
  void admit(const HelloWorker& hello, Incarnation incarnation, PeerId peer, std::string address,
             TimePoint join_deadline);

  // ---- who comes back (decision 0013) ----

  // Of a run that began before this scheduler did, by its first worker that comes back: it recovers until
  // `deadline`, or until all have come.
  void recover_until(TimePoint deadline);
  // One that this scheduler has not admitted itself: recovering or gathering. An error is for its Refused.
  Status take_back(const HelloWorker& hello, std::string address, TimePoint join_deadline);
  // The worker has said back what it was told, and is there again.
  Status worker_attached(TimePoint now, Rank rank, PeerId peer, WorkerReport report);
  // Likewise the server; null: it does not know the run.
  Status server_attached(ServerId server, const RunReport* report);
  // Goes on if everybody has come back or is dead.
  void try_recover(TimePoint now);
  // What a worker asks meanwhile, for on_worker() of the core afterwards.
  HeldRequests& held() { return recovery_.held(); }

  // The worker's connection is lost; it is dead later, or not.
  void worker_suspected(Rank rank);
  // `how`: "connection lost 0.3 s ago"
  void worker_died(Rank rank, const std::string& how);
  // It says no more, but lingers until the others have settled; Outbox::worker_gone then.
  void worker_left(Rank rank);
  Status settled(Rank rank, std::uint64_t call) { return departures_.settled(rank, call); }
  Status declare(Rank rank, const Declare& declare);
  Status tensor_failed(Rank rank, const TensorFailed& failed);
  // Calls without names.
  Status called(Rank rank, const OpenCalls& open) {
    return of_group(rank, open.job_run, open.group, [&] {
      const auto differ = calls_.add(rank, open, tensors_.catalog());
      return differ ? fail_tensor(rank, open.group, *differ) : Status();
    });
  }
  Status called(Rank rank, const RankJoined& joined) {
    return of_group(rank, joined.job_run, joined.group, [&] {
      joins_.joined(rank, joined, tensors_.catalog());
      return Status();
    });
  }
  Status called(Rank rank, const CallsMade& made) {
    return of_group(rank, made.job_run, made.group, [&] {
      joins_.made(made);
      return Status();
    });
  }
  Status drop_tensors(Rank rank, const DropTensors& drop);
  Status barrier(Rank rank, std::uint64_t number);
  Status lane_lost(TimePoint now, Rank rank, const LaneLost& said);

  void server_acked(ServerId server, std::uint64_t request, const Error& error);
  // True: it has logged that, with what becomes of the run.
  bool server_died(const ServerRecord& server, const std::string& how);
  void server_drains(const ServerRecord& server);
  // Whoever refused what it has may have room now.
  void drain_again(const ServerRecord& server);

  // ---- for queries ----
  const std::set<ServerId>& servers() const { return servers_.used(); }
  // From opening on, else null.
  const TensorCatalog* tensors() const { return tensors_.is_open() ? &tensors_.catalog() : nullptr; }
  const JobWaits& waits() const { return waits_; }
  // Why it keeps the server, if it does: its partitions cannot move for now.
  std::optional<std::string> keeps(ServerId server) const;

  // Something may have changed that the start waits for, or a server that drains.
  void maybe_start();
  // Join deadline and progress.
  void tick(TimePoint now);
  void fail(Error error);
  // It was never this job's run: nobody but its workers hears of it.
  void disown(const Error& error);

 private:
  Status fail_tensor(Rank rank, TensorId tensor, const Error& error);
  void go_on();

  void judge_links(TimePoint now);
  bool can_shrink(Rank lost) const;
  void shrink(Worker& worker, const std::string& reason);
  void forget(Worker& worker, const std::string& reason);

  void open();
  void reopen(const Error& why);
  void start_running();
  // Not if it has failed already, or is being declared by others only.
  Status of_group(Rank rank, JobRun run, TensorId id, const std::function<Status()>& then);
  std::uint64_t choose_partition_bytes() const;
  void conclude(const Status& status);
  void end(Error error);

  Run run_;
  Gathering gathering_;
  Error end_error_;
  Losses losses_{run_};
  RunServers servers_{run_, losses_};
  LaneTable lanes_{run_};
  TensorRelay tensors_{run_};
  Departures departures_{run_, servers_.used()};
  LinkJudge links_{run_};
  CatchUp catch_up_{run_, lanes_, tensors_, losses_};
  Handoff handoff_{run_, servers_, lanes_, tensors_, catch_up_, departures_, links_};
  CallComparison calls_;
  JoinRelay joins_{run_};
  Barriers barriers_;
  BarrierRelay barrier_relay_{run_, barriers_};
  Recovery recovery_{run_, servers_, lanes_, tensors_, losses_, barriers_};
  JobWaits waits_{run_, {gathering_, servers_, lanes_, tensors_, losses_, links_, handoff_, barriers_}};
};

}  // namespace bps

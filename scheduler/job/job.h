// One run of a job, from its first worker to its end:
//
//   gathering   workers join, until all world_size and at least one server are there, or the join deadline is
//   opening     OpenJob is with the servers that the run will use; the set of workers is fixed
//   running     JobStart is out; tensors, barriers, leaves
//   recovering  of a run that began before this scheduler did: its workers and servers come back, and what
//   they
//               say they were told becomes its state (decision 0013); then gathering or running
//   ended       all have left, or the run has failed: everyone has been told, and it is of no more use
//
// From opening on, the death of a worker fails the run: every other worker gets JobFailed with an error that
// names who is gone, every server of it JobEnded. A job that is to shrink goes on once it is running:
// servers, then workers, hear who is lost (decision 0012), and nobody waits for it any more.
//
// A server that dies, or drains, is replaced while the run goes on (decision 0009): its partitions get new
// owners, among all servers there are, in a new epoch; when all servers of the run have acknowledged that,
// workers get Moved. Until then no Declare is answered, because its answer may name lanes that workers do not
// know. A newcomer that refuses its part is left out. The run fails only if nobody can take them. A run that
// is opening begins to open again without the server. Nothing is lost when a server of the run has no room
// for what another one drains: all stays where it is, until another server comes or the job ends. One that
// lives, but that workers cannot reach, goes as if it drained, or the worker is lost that cannot reach it
// (decision 0016).
//
// Owner: SchedulerCore, which tells peers from workers, notices deaths, and forgets a run that has ended.
// Pure: sends through the Outbox. A Status that is returned is an offence against the protocol: the core
// drops that peer.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "scheduler/job/barriers.h"
#include "scheduler/job/catch_up.h"
#include "scheduler/job/departures.h"
#include "scheduler/job/handoff.h"
#include "scheduler/job/lane_table.h"
#include "scheduler/job/link_judge.h"
#include "scheduler/job/losses.h"
#include "scheduler/job/membership.h"
#include "scheduler/job/recovery.h"
#include "scheduler/job/run.h"
#include "scheduler/job/run_servers.h"
#include "scheduler/job/tensor_relay.h"
#include "scheduler/job/tensor_table.h"
#include "scheduler/report.h"
#include "scheduler/server_table.h"

namespace bps {

struct JobOptions {
  Duration join_progress_interval = std::chrono::seconds(2);
  std::string server_command = "bps-server --scheduler HOST:PORT";  // advice when no server is there
};

class Job {
 public:
  enum class Phase : std::uint8_t { gathering, opening, running, recovering, ended };

  Job(const HelloWorker& first, JobRun run, Term term, TimePoint now, ServerTable& servers, Outbox& outbox,
      const JobOptions& options);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string& name() const { return run_.name(); }
  JobRun run() const { return run_.id; }
  Phase phase() const { return phase_; }
  bool ended() const { return phase_ == Phase::ended; }
  // Why it ended; code ok = all workers left.
  const Error& end_error() const { return end_error_; }
  const Membership& membership() const { return run_.membership; }

  Membership::Decision decide(const HelloWorker& hello) const {
    return run_.membership.decide(hello, phase_ == Phase::gathering);
  }
  // What decide() refused. If that rank is missing in the end, the others hear why.
  void note_refused(Rank rank, const Error& error) { refused_[rank] = error; }
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
  Status worker_attached(Rank rank, PeerId peer, WorkerReport report);
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
  Status settled(Rank rank, std::uint64_t number) { return departures_.settled(rank, number); }
  Status declare(Rank rank, const Declare& declare);
  Status tensor_failed(Rank rank, const TensorFailed& failed);
  Status barrier(Rank rank, std::uint64_t number);
  Status lane_lost(TimePoint now, Rank rank, const LaneLost& said);

  void server_acked(ServerId server, std::uint64_t request, const Error& error);
  // True: it has logged that, with what becomes of the run.
  bool server_died(const ServerRecord& server, const std::string& how);
  void server_drains(const ServerRecord& server);
  // Whoever refused what it has may have room now.
  void drain_again(const ServerRecord& server);

  // ---- for questions: job_waits.cc ----
  const std::set<ServerId>& servers() const { return servers_.used(); }
  // From opening on, else null.
  const TensorTable* tensors() const { return tensors_.is_open() ? &tensors_.table() : nullptr; }
  Party party(Rank rank, const Silence& silence) const;
  // What it waits for by itself, as far as that is in question: all but rounds.
  std::vector<Wait> waits(TimePoint now, const AskWaits& question, const Silence& silence) const;
  // What servers have said, in the job's words.
  Wait wait_of(const OpenRound& open, const Silence& silence) const;
  // A server that does not answer, if it holds anything of this job.
  std::optional<Wait> wait_of(ServerId silent, const Silence& silence) const;
  JobState state(TimePoint now, const Silence& silence) const;
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
  // Since when something is so, as far as ticks show it.
  struct Since {
    std::optional<std::uint64_t> what;
    TimePoint since;
    void note(std::optional<std::uint64_t> now_what, TimePoint now) {
      if (what == now_what) return;
      what = now_what;
      since = now;
    }
  };
  void go_on();

  void note_waits(TimePoint now);
  std::uint64_t age_ms(const Since& since, TimePoint now) const;
  Wait wait(WaitKind kind, std::vector<Party> missing, std::size_t expected) const;
  std::vector<Wait> unconfirmed(TimePoint now, const AskWaits& question, const Silence& silence) const;
  Wait wait_of(const CutLink& link, const Silence& silence) const;

  void judge_links(TimePoint now);
  bool can_shrink(Rank lost) const;
  void shrink(Worker& worker, const std::string& reason);
  void forget(Worker& worker, const std::string& reason);

  void open();
  void reopen(const Error& why);
  void start_running();
  void tell_progress();
  Error join_error(TimePoint now, const Worker& impatient) const;
  std::uint64_t choose_partition_bytes() const;
  void fail_barriers(std::uint64_t from, std::uint64_t to, Rank left);
  Error barrier_error(std::uint64_t number, Rank left) const;
  void conclude(const Status& status);
  void end(Error error);
  std::string counts() const;

  Run run_;
  const JobOptions& options_;
  std::map<Rank, Error> refused_;  // while it gathers: the last word to each rank that was turned away
  Phase phase_ = Phase::gathering;
  Error end_error_;
  TimePoint next_progress_;
  Losses losses_{run_};
  RunServers servers_{run_, losses_};
  std::map<std::uint64_t, ServerId> opening_;  // requests to those that have not confirmed it yet
  LaneTable lanes_{run_};
  TensorRelay tensors_{run_};
  Departures departures_{run_, servers_.used()};
  LinkJudge links_{run_};
  CatchUp catch_up_{run_, lanes_, tensors_, losses_};
  Handoff handoff_{run_, servers_, lanes_, tensors_, catch_up_, departures_, links_};
  Barriers barriers_;
  Recovery recovery_{run_, servers_, lanes_, tensors_, losses_, barriers_};
  Since barrier_since_, unconfirmed_since_, move_since_, opening_since_;
  TimePoint noted_at_;         // the last time
  bool has_new_loss_ = false;  // since then
};

}  // namespace bps

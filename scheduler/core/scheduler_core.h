// The scheduler without IO: which peers are workers, servers or newcomers that wait; which runs exist; who is
// dead. Takes decoded messages, connection losses and ticks with the local time, and emits actions (messages,
// closes, log lines).
//
// A peer is one control connection; its first message must be a hello, and an answer to that is Welcome (a
// worker or server now), Refused and close, or silence while a newcomer waits for the fate of the run that is
// in its way. Whatever breaks the protocol costs the peer its connection, with a Refused that says why. A
// worker or server whose connection is lost takes it up again, or is dead when the grace has passed. Those of
// a scheduler that was there before come, too, and bring their runs (decision 0013).
//
// Owner: Scheduler, or the simulator. Lives on: its owner's loop; call tick() every `options.tick`. Not
// thread-safe. Limits: options. A run that has ended is forgotten; the reasons of the last few are kept for
// latecomers.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "proto/wire/limits.h"
#include "scheduler/actions.h"
#include "scheduler/core/failure_detector.h"
#include "scheduler/core/gone_servers.h"
#include "scheduler/core/pause_clock.h"
#include "scheduler/core/server_queries.h"
#include "scheduler/job/job.h"
#include "scheduler/report.h"
#include "scheduler/server_table.h"
#include "scheduler/state.h"

namespace bps {

struct CoreOptions {
  // Of the scheduler before: this one's term is to be higher.
  SchedulerState before;
  std::uint64_t term = 1;  // number
  Duration tick = std::chrono::milliseconds(50);
  FailureDetector::Options detector;
  JobOptions job;
  std::size_t max_jobs = 1024;
  std::size_t max_workers = 16384;  // of all jobs, with those that wait
  std::size_t max_servers = kMaxServers;
  std::size_t max_admins = 16;
};

class SchedulerCore {
 public:
  // `random` gives 64 random bits; runs and incarnations are named with them.
  SchedulerCore(CoreOptions options, std::function<std::uint64_t()> random);
  SchedulerCore(const SchedulerCore&) = delete;
  SchedulerCore& operator=(const SchedulerCore&) = delete;

  // A connection has said its first message, which follows. `address` is for messages.
  void connected(PeerId peer, std::string address);
  // Of an unknown peer, e.g. one that was closed: ignored, both.
  void message(TimePoint now, PeerId peer, Message&& message);
  void lost(TimePoint now, PeerId peer, const Error& reason);
  // The peer is to be given up for what it does: it is told, closed, and counts as lost.
  void expel(TimePoint now, PeerId peer, const Error& reason);
  void tick(TimePoint now);

  // Fails all runs with `reason`, refuses everyone, now and from now on.
  void stop(TimePoint now, const Error& reason);

  std::vector<SchedulerAction> take_actions() { return outbox_.take(); }

  // Where workers and servers reach this scheduler, for advice.
  void set_server_command(std::string command) { options_.job.server_command = std::move(command); }

  // What the next scheduler is to know, and how often that has changed.
  SchedulerState state() const;
  std::uint64_t state_changes() const { return state_changes_; }

  std::size_t job_count() const { return jobs_.size(); }
  std::size_t server_count() const { return servers_.all().size(); }
  std::size_t peer_count() const { return peers_.size(); }
  std::size_t node_count() const { return nodes_.size(); }
  const Term& term() const { return term_; }
  // A node follows a later scheduler: this one is to go without a word, for its nodes to find the other one.
  const std::optional<Error>& superseded() const { return superseded_; }
  // An administrator: nobody else suffers if it is given up early for not reading.
  bool is_admin(PeerId peer) const;

 private:
  enum class Role : std::uint8_t {
    greeting,  // has said nothing yet
    waiting,   // a worker whose hello waits
    worker,
    server,
    admin,
    done,  // a worker that has left, or whose run has ended
  };
  struct Waiting {
    HelloWorker hello;
    TimePoint until;
  };
  struct Peer {
    std::string address;
    Role role = Role::greeting;
    Incarnation incarnation;  // worker, server, done
    std::optional<Waiting> waiting;
    // It says back what it was told; not there for its run before that has ended.
    std::unique_ptr<WorkerReport> worker_report;
    std::unique_ptr<ServerReport> server_report;
    TimePoint report_until;
  };
  struct Node {  // what has an incarnation; lives until it is dead, with or without a connection
    Role role = Role::worker;
    PeerId peer;  // 0: lost
    JobRun run;
    Rank rank;
    ServerId server;
    std::string offence;  // why it was expelled
    bool absent = false;  // was there before this scheduler, and has not come back
  };
  struct DrainWatch {  // an administrator waits for a server to go
    PeerId peer;
    Drain query;
    std::uint32_t jobs = 0;
  };
  struct EndedRun {
    JobRun run;
    std::string job;
    Error error;
  };

  void handle(TimePoint now, PeerId id, Peer& peer, Message& message);
  void on_worker(TimePoint now, PeerId id, Node& node, Message& message);
  void on_server(TimePoint now, PeerId id, Node& node, Message& message);
  void send_heartbeats();

  // ---- who comes back ----
  void attach(TimePoint now, PeerId id, const HelloWorker& hello);
  void attach(TimePoint now, PeerId id, const HelloServer& hello);
  bool is_superseded_by(const Term& seen);
  Error farewell_to(const HelloWorker& hello) const;
  Status bring_back(TimePoint now, PeerId id, const HelloWorker& hello);
  Status bring_back(TimePoint now, const HelloServer& hello);
  std::string who_is(const Node& node);
  void give_connection(TimePoint now, PeerId id, Incarnation incarnation);
  bool take_report(TimePoint now, PeerId id, Peer& peer, Message& message);
  Status attached(TimePoint now, PeerId id, const Node& node, WorkerReport report);
  Status attached(TimePoint now, PeerId id, const Node& node, ServerReport report);
  // A node notices that the scheduler is gone within one heartbeat deadline, and then has one to come.
  Duration collect_time() const { return 2 * options_.detector.heartbeat_deadline; }
  void add_absent(TimePoint now, const Outbox::Absent& absent);
  void skip_number(ServerId server);
  void try_recover(TimePoint now);
  void expire_reports(TimePoint now);
  void expire_orphans(TimePoint now);
  void expire_awaited(TimePoint now);

  // Queries. scheduler_core_queries.cc
  void on_hello(TimePoint now, PeerId id, const HelloAdmin& hello);
  void on_admin(TimePoint now, PeerId id, Message& message);
  void on_waits_asked(TimePoint now, PeerId id, AskWaits query);
  std::vector<ServerQueries::Target> targets_of(const AskWaits& query, Error& error) const;
  void carry_on_queries(TimePoint now);
  void answer(TimePoint now, ServerQueries::Answered answered);
  Silence silence_at(TimePoint now) const;
  ClusterState cluster_state(TimePoint now, std::uint64_t request) const;
  void on_drain(PeerId id, const Drain& drain);
  std::optional<Error> objection(const Drain& drain) const;
  void tell_gone(const ServerRecord& server, const Error& error);
  void tell_kept(ServerId server);
  void note_keepers(const ServerRecord& server, Drained& drained);

  void on_hello(TimePoint now, PeerId id, HelloWorker& hello);
  void on_hello(TimePoint now, PeerId id, HelloServer& hello);
  std::optional<Error> objection(const HelloWorker& hello) const;
  std::optional<Error> objection(const HelloServer& hello) const;
  // Admits or refuses; false: the peer must wait.
  bool try_join(TimePoint now, PeerId id, const HelloWorker& hello, TimePoint until);
  void join(TimePoint now, PeerId id, const HelloWorker& hello, TimePoint until, Job& job);
  void retry_waiting(TimePoint now);
  void expire_waiting(TimePoint now);
  // Another process on the same address is a death and a birth.
  void bury_predecessor(const HelloServer& hello);

  // Ends of a peer: refused at the door; closed by us; dropped for what it did; lost.
  void refuse(PeerId id, const Error& error);
  void close(PeerId id);
  void offend(TimePoint now, PeerId id, const Error& error);
  void lose(TimePoint now, PeerId id, const std::string& offence);

  void bury(const FailureDetector::Death& death);
  void bury_cut_off(const Outbox::CutOff& worker);
  void bury_server(ServerId id, const std::string& how);
  // Forgets runs that have ended; then newcomers who waited for that may have their turn.
  void settle(TimePoint now);
  void retire(JobRun run);
  void make_done(Node& node);
  void forget_node(Incarnation incarnation);

  Job* find_job(JobRun run);
  std::uint64_t random_id();

  CoreOptions options_;
  std::function<std::uint64_t()> random_;
  Term term_;
  Outbox outbox_;
  PauseClock clock_;
  FailureDetector detector_;
  ServerTable servers_;
  std::map<PeerId, Peer> peers_;
  std::map<Incarnation, Node> nodes_;
  std::map<JobRun, std::unique_ptr<Job>> jobs_;
  std::map<std::string, JobRun> run_of_name_;
  std::set<PeerId> waiting_;
  GoneServers gone_servers_;
  ServerQueries server_queries_;
  std::vector<DrainWatch> drains_;
  std::size_t admin_count_ = 0;
  std::optional<TimePoint> started_;  // the first time that is known
  bool retry_waiting_ = false;        // something ended that a newcomer may have waited for
  std::size_t worker_count_ = 0;
  std::deque<EndedRun> ended_runs_;
  ServerId last_server_;
  TimePoint next_heartbeat_{};
  std::uint64_t heartbeat_sequence_ = 0;
  std::optional<Error> stopping_;
  std::optional<Error> superseded_;
  bool welcomed_ = false;  // somebody knows the term
  // Runs that servers have brought back, and no worker yet.
  struct Orphan {
    TimePoint until;
    std::map<JobRun, RunReport> runs;
  };
  std::map<ServerId, Orphan> orphans_;
  std::map<JobRun, std::string> awaited_;  // of the scheduler before: nobody of them has come back
  std::optional<TimePoint> awaited_until_;
  std::uint64_t state_changes_ = 0;
  std::set<JobRun> recovering_;
  std::set<JobRun> disowned_;  // ended, but not the runs that they said to be
};

}  // namespace bps

// A run that began before this scheduler did (decision 0013): its workers and servers come back and report
// what they were told, until all have come or are dead, or the deadline has passed. Then the reports become
// the state of the run: members, lanes, owners of partitions, barriers.
//
// What workers ask meanwhile is held.
//
// Owner: Job. Pure. Reports that contradict each other, or too few of them, are an error and end the run.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/handoff/lane_table.h"
#include "scheduler/handoff/run_servers.h"
#include "scheduler/held_requests.h"
#include "scheduler/job/barriers.h"
#include "scheduler/job/losses.h"
#include "scheduler/report.h"
#include "scheduler/tensors/tensor_relay.h"

namespace bps {

class Recovery {
 public:
  struct Reports {
    std::map<Rank, WorkerReport> workers;
    std::map<ServerId, RunReport> servers;
    std::map<Rank, std::string> dead_workers;  // how
    std::vector<std::pair<ServerRecord, std::string>> dead_servers;
    std::vector<Rank> unknown;    // not there, and nobody says how it came to that
    bool has_started = false;     // as far as anybody has said, also if he is gone
    std::size_t known_lanes = 0;  // to workers

    bool any_started() const;
  };

  Recovery(Run& run, RunServers& servers, LaneTable& lanes, TensorRelay& tensors, Losses& losses,
           Barriers& barriers)
      : run_(run),
        servers_(servers),
        lanes_(lanes),
        tensors_(tensors),
        losses_(losses),
        barriers_(barriers) {}

  void begin(TimePoint deadline) { deadline_ = deadline; }

  // ---- who comes, and who does not ----
  void worker_back(Rank rank, WorkerReport report);
  // A worker that is known from now on: as far as servers have said that it left.
  void note_left(Rank rank);
  void worker_died(Rank rank, const std::string& how) { reports_.dead_workers[rank] = how; }
  // Its report does not count any more; it may come again.
  void forget(Rank rank) { reports_.workers.erase(rank); }
  Status server_back(ServerId server, const RunReport& report);
  void server_died(const ServerRecord& server, const std::string& how);

  HeldRequests& held() { return held_; }

  // Everybody has come back or is dead.
  bool is_complete(TimePoint now);
  const Reports& reports() const { return reports_; }

  // Nobody had been told to start: who is there is to gather again.
  void gather_again();
  // The run had started: its state is that of the reports.
  Status restore();
  // After restore(): whether somebody knows less than others, but who had not heard of the start.
  bool is_anybody_behind();
  // It is over.
  Reports take() { return std::exchange(reports_, {}); }

 private:
  void note_absent();
  std::size_t most_members() const;
  Status note_unknown();
  std::optional<Rank> find_missed() const;
  bool is_missed(Rank rank) const;
  bool awaits_server(const LaneTarget& lane, TimePoint now) const;
  Status note_losses();
  std::vector<bool> closed_lanes() const;
  bool is_dead(const LaneTarget& lane) const;
  const ServerRecord* server_of(const LaneTarget& lane) const;
  Status check_majority() const;
  Status restore_groups();
  void retire_lost();
  void settle_used();
  Status restore_tensors(std::uint64_t partition_bytes);
  std::set<TensorId> ended_tensors() const;
  void restore_barriers();
  void adopt_partitions();
  bool differs(const WorkerReport& report) const;

  Run& run_;
  RunServers& servers_;
  LaneTable& lanes_;
  TensorRelay& tensors_;
  Losses& losses_;
  Barriers& barriers_;
  TimePoint deadline_;
  Reports reports_;
  std::set<ServerId> noted_;  // whose members are known here
  // Who was waited for last: while that is so, nothing else need be looked at.
  std::optional<Rank> missed_;
  std::optional<LaneTarget> awaited_;
  HeldRequests held_;
};

}  // namespace bps

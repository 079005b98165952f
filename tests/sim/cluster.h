// Runs a scenario: scheduler, servers and workers as processes on one virtual clock and network, the faults
// at their times, and the checks that only the whole can make. All classes under test are the real ones; the
// only things that are simulated are loops, clock and network.
//
// It checks, besides what SimWorker does: every job meets its fate; a job with an error names the lost peer,
// in time; other jobs notice nothing; nothing waits for ever; no error is logged without a cause; servers and
// scheduler are empty after the jobs; no payload changed while the network held it; no connection is left.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/auth/key.h"
#include "proto/base/log/log.h"
#include "proto/base/loop/virtual_loop.h"
#include "scheduler/state.h"
#include "tests/sim/node.h"
#include "tests/sim/scenario.h"
#include "tests/sim/scheduler_daemon.h"
#include "tests/sim/server_daemon.h"
#include "tests/sim/sim_worker.h"
#include "tests/sim/virtual_transport.h"

namespace bps::sim {

struct RunOptions {
  bool verbose = false;  // every frame and log line on stdout
  // To see that the checkers see: done to frames that leave.
  std::function<Tamper(const Message&, const Side& from)> tamper;
};

struct Outcome {
  std::vector<std::string> failures;
  std::uint64_t trace = 0;  // hash of every frame delivered, when and to whom
  std::uint64_t frames = 0;
  std::map<std::string, std::uint64_t> frames_by_kind;
  std::uint64_t faults = 0;  // that have struck
  LendingCounts lending;
  Duration virtual_time{0};

  bool ok() const { return failures.empty(); }
};

Outcome run_scenario(const Scenario& scenario, const RunOptions& options);

class Cluster {
 public:
  Cluster(const Scenario& scenario, const RunOptions& options);
  ~Cluster();
  Outcome run();

 private:
  struct SimJob {
    std::unique_ptr<JobContext> context;
    std::vector<std::unique_ptr<SimNode>> nodes;
    std::vector<std::unique_ptr<SimWorker>> workers;
    Fate fate = Fate::exact;
    std::uint64_t frames = 0;
    std::vector<std::string> lost_names;  // an error must contain one of these
    SimWorker* lost = nullptr;
    TimePoint lost_at;
  };
  struct SimServer {
    std::unique_ptr<SimNode> node;
    std::unique_ptr<ServerDaemon> daemon;
    bool faulty = false;  // it was lost to the scheduler: its state afterwards is its own affair
  };
  struct Line {
    LogLevel level;
    std::string text;
    bool struck;  // after the first fault
  };

  std::shared_ptr<LogTarget> log_of(const std::string& node);
  void boot();
  void boot_scheduler();
  void restart_scheduler(const FaultPlan& fault);
  void boot_server(std::size_t index);
  void on_frame(const FrameEvent& event);
  void show(const FrameEvent& event) const;
  void strike(const FaultPlan& fault);
  void lose(const FaultPlan& fault, SimNode& node);
  void cut(const FaultPlan& fault, SimNode& node);
  void cut_link(const FaultPlan& fault, SimNode& node);
  bool all_over() const;
  static bool has_begun_all(const SimJob& job);
  void check_fate(SimJob& job);
  void check_logs();
  void check_empty();
  void shut_down();
  SimNode& node_of(const FaultPlan& fault);

  const Scenario& scenario_;
  const RunOptions& options_;
  const SharedKey key_;
  Report report_;
  Random random_;
  VirtualLoop base_;
  VirtualTransport network_;
  std::unique_ptr<SimNode> scheduler_node_;
  SchedulerState scheduler_state_;                // on its disk
  std::vector<std::unique_ptr<SimNode>> graves_;  // connections may still name them
  std::unique_ptr<SchedulerDaemon> scheduler_;
  std::vector<SimServer> servers_;
  std::vector<SimJob> jobs_;
  std::map<const SimNode*, std::size_t> job_of_;
  std::map<const SimNode*, std::size_t> server_of_;
  std::vector<bool> struck_;
  bool shutting_down_ = false;
  std::vector<Line> lines_;
  Outcome outcome_;
};

}  // namespace bps::sim

// A scenario is a workload times faults, drawn from a seed: what the simulated cluster is made of, what its
// jobs do, and what goes wrong when.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/loop/event_loop.h"
#include "proto/base/result.h"
#include "tests/sim/virtual_transport.h"
#include "tests/sim/workload.h"

namespace bps::sim {

struct ServerPlan {
  Duration start{0};
  std::uint32_t shards = 1;
  std::uint64_t memory_max = 256ull * 1024 * 1024;
  std::uint64_t reorder_budget = 64ull * 1024 * 1024;  // per shard
  std::uint64_t call_memory = 4ull * 1024 * 1024;
  std::uint64_t bandwidth_bps = 0;
  Duration scheduler_grace{0};
};

struct FaultPlan {
  enum class Kind {
    delay_spike,  // `length` more latency for what leaves a node within the next `length`
    cut_lanes,    // of one worker, or all of a server
    cut_control,  // one worker's or server's connection to the scheduler
    refuse,       // cut_lanes of a server, whose port then refuses for `length`
    pause,        // for `length`
    kill,         // the process
    power_off,    // the host: nobody hears a close
    drain,        // the server, politely
    restart,      // the scheduler is killed, and another one started after `length`
    cut_link,     // between a worker and `server`, for `length`; 0: for good
  };
  enum class Target { worker, server, scheduler };

  Kind kind = Kind::delay_spike;
  std::uint64_t after_frames = 1;  // of data, of that job, delivered to anybody
  Duration delay{0};               // and this much later
  Target target = Target::worker;
  std::size_t job = 0;
  std::size_t index = 0;  // rank or server
  Duration length{0};
  std::size_t server = 0;  // cut_link: the other end
  bool silent = false;     // restart, cut_link: nobody hears a close
  bool forgetful = false;  // restart: what it had written is lost
};

// What must come of a job.
enum class Fate {
  exact,           // all workers end well
  error,           // all surviving workers end with an error that names the lost one
  exact_or_error,  // either, but alike in time
  any,             // they end
};

struct Scenario {
  std::string name;
  std::uint64_t seed = 1;
  NetworkOptions network;
  bool wrong_clocks = false;
  bool keyed = false;         // everyone has a key and proves it
  bool tight_memory = false;  // servers may have no room for what others had
  std::vector<ServerPlan> servers;
  std::vector<JobPlan> jobs;
  std::vector<Fate> fates;  // per job
  std::vector<FaultPlan> faults;
  // How long after the last fault a job with fate `error` may take to end.
  Duration detection{0};
  Duration scheduler_grace = std::chrono::milliseconds(500);  // of all nodes
};

std::string_view name_of(FaultPlan::Kind kind);

const std::vector<std::string_view>& scenario_names();

// An unknown name is invalid_argument and names the known ones.
Result<Scenario> make_scenario(std::string_view name, std::uint64_t seed);
// The scenario that a bare seed stands for.
std::string_view scenario_of(std::uint64_t seed);

}  // namespace bps::sim

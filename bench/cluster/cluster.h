// The processes of one benchmark: raw servers, scheduler, servers, workers, each on this host or, with a
// link, on a host of its own. Starts them, tells the workers what to do, and takes everything down again,
// whatever happens.
//
// Owner: a subcommand. One thread; SIGINT, SIGTERM and SIGCHLD are blocked while one exists. Failure: an
// error that names the process and shows the last lines it wrote. After an error only the destructor is of
// use; it ends what it started within seconds.
//
// With a link, worker process i is on host 1 + i, server j (of those with a host of their own) on host
// 1 + processes + j, the co-located server c on that of worker c, and the scheduler on host 0.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/cluster/children.h"
#include "bench/cluster/control.h"
#include "bench/cluster/lab.h"
#include "bench/cluster/worker_options.h"
#include "proto/base/config/units.h"
#include "proto/base/endpoint.h"
#include "proto/base/result.h"

namespace bps::bench {

struct ClusterOptions {
  WorkerOptions worker;  // the common part: sizes, types, engines
  std::uint32_t servers = 1;
  std::uint32_t colocated = 0;         // further servers, on the hosts of the first workers
  std::optional<BitRate> link;         // of every host; without it there is one host, this one
  std::optional<BitRate> slow_server;  // link of server 0's host
  Duration delay{0};                   // of each link, and what part of its frames it loses, "0.1%"
  std::string loss;
  std::string netlab;
  std::string address = "127.0.0.1";  // of this host, where all listen without links
  std::string shards = "auto";
  bool verbose = false;  // children's output goes to stderr as it comes
};

class Cluster {
 public:
  Cluster();
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Returns when all processes are there; no worker has joined.
  Status start(const ClusterOptions& options);

  // Lets all workers do a step, and returns their replies in the order of their processes.
  Result<std::vector<Reply>> step(const Request& request);

  // What all processes have used so far; not this one.
  Result<double> cpu_seconds() const;

  std::vector<pid_t> server_pids() const;

 private:
  std::uint32_t host_of_server(std::uint32_t server) const;
  std::uint64_t bandwidth_of_server(std::uint32_t server) const;
  std::string address_of(std::uint32_t host) const;
  Status start_lab();
  Status start_raw_servers(WorkerOptions& worker);
  // A scheduler and its servers; those with TLS are others than those without.
  Result<Endpoint> start_daemons(const WorkerOptions& worker, bool tls);
  Status start_workers(WorkerOptions& worker);
  Result<Child*> start_child(std::string name, std::uint32_t host, const std::string& program,
                             std::vector<std::string> arguments);
  Result<Endpoint> start_daemon(const std::string& name, std::uint32_t host, const std::string& program,
                                std::vector<std::string> arguments);

  ClusterOptions options_;
  std::unique_ptr<Lab> lab_;  // goes last
  std::unique_ptr<Children> children_;
  std::vector<Child*> workers_;
  std::vector<Child*> servers_;
  bool orderly_ = false;  // all are well: let the workers leave the job before the daemons are stopped
};

// The path of a program beside this one.
Result<std::string> sibling_program(const std::string& name);

}  // namespace bps::bench

// The processes of one benchmark: raw servers, scheduler, servers, workers. Starts them, tells the workers
// what to do, and takes everything down again, whatever happens.
//
// Owner: a subcommand. One thread; SIGINT, SIGTERM and SIGCHLD are blocked while one exists. Failure: an
// error that names the process and shows the last lines it wrote. After an error only the destructor is of
// use; it ends what it started within seconds and removes the folder of temporary files.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/control.h"
#include "bench/worker_options.h"
#include "proto/base/endpoint.h"
#include "proto/base/result.h"

namespace bps::bench {

struct ClusterOptions {
  WorkerOptions worker;  // the common part: sizes, types, settings
  bool with_bps = true;
  std::string shards = "auto";
  bool verbose = false;  // children's output goes to stderr as it comes
};

class Cluster {
 public:
  Cluster();
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Returns when all workers are ready.
  Status start(const ClusterOptions& options);

  // Lets all workers do a step, and returns their replies in rank order.
  Result<std::vector<Reply>> step(const Request& request);

  // What all processes have used so far; not this one.
  Result<double> cpu_seconds() const;

 private:
  struct Child {
    std::string name;
    pid_t pid = 0;
    int out = -1;
    int err = -1;
    std::string last_words;
    std::optional<std::string> end;  // how it ended
    Fd control;
    std::optional<Reply> reply;  // not yet taken
  };
  using Deadline = std::chrono::steady_clock::time_point;

  Status make_folder();
  Status start_child(std::string name, const std::string& file, std::vector<std::string> arguments);
  Status start_self(const std::string& role, const WorkerOptions& options);
  Result<Endpoint> start_daemon(const std::string& name, const std::string& program,
                                std::vector<std::string> arguments);
  Status start_raw_servers(WorkerOptions& worker);
  // Handles what children say, send and do until `done`; fails when one of them does, on a signal, and at the
  // deadline.
  template <class Done>
  Status wait_until(Deadline deadline, const std::string& what, Done done);
  Status poll_once(Deadline deadline);
  Status read_hello();
  Status read_signals();
  bool read_output(Child& child);
  Status reap();
  Error failure_of(const Child& child) const;
  void stop();
  Child* find(const std::string& name);

  ClusterOptions options_;
  std::string folder_;
  Fd listener_;
  std::vector<Fd> strangers_;  // connected, hello not yet read
  Fd signals_;
  std::vector<Child> children_;
  std::size_t first_worker_ = 0;
  bool orderly_ = false;  // all are well: let the workers leave the job before the daemons are stopped
};

// The path of a program beside this one.
Result<std::string> sibling_program(const std::string& name);

}  // namespace bps::bench

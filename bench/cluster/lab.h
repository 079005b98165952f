// Hosts to run the processes of a benchmark on: network namespaces with links of a given rate, made and
// removed by the script netlab.
//
// Owner: Cluster. One thread, with SIGCHLD blocked. Needs root; without it, or where the system refuses, up()
// returns netlab's own words. The destructor removes all hosts and ends what still runs on them. Host 0 is
// where the scheduler runs: its link is not shaped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "deploy/bps_run/process.h"
#include "proto/base/config/units.h"
#include "proto/base/result.h"

namespace bps::bench {

// Of every host, in each direction.
struct LabLink {
  BitRate rate;
  Duration delay{0};
  std::string loss;  // as netlab takes it, "0.1%"; empty: none
};

class Lab {
 public:
  // `program`: the script; empty: the one that belongs to this bps-bench.
  static Result<std::unique_ptr<Lab>> up(const std::string& program, std::uint32_t hosts,
                                         const LabLink& link);
  ~Lab();
  Lab(const Lab&) = delete;
  Lab& operator=(const Lab&) = delete;

  Status set_rate(std::uint32_t host, BitRate rate);

  // The same command on that host. It is the process that is started, not a child of it.
  Command on_host(std::uint32_t host, Command command) const;

  static std::string name_of(std::uint32_t host);  // "h3"
  static std::string address_of(std::uint32_t host);

 private:
  explicit Lab(std::string program);
  Status run(std::vector<std::string> arguments) const;

  const std::string program_;
  const std::string name_;  // of its own, so that several benchmarks can run
  bool up_ = false;
};

}  // namespace bps::bench

// What the command line of bps-run says, and what follows from it before anything is started.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "proto/base/config/env.h"
#include "proto/base/loop/event_loop.h"

namespace bps {

struct RunOptions {
  std::uint32_t workers = 0;
  std::uint32_t servers = 1;
  std::string job = "default";
  std::string shards;                                 // handed to the servers; empty = their default
  Duration timeout{};                                 // of the whole run; 0 = none
  Duration grace = std::chrono::seconds(10);          // once a worker has failed or a signal has come
  Duration start_timeout = std::chrono::seconds(20);  // for the daemons to listen
  std::string bin_dir;
  std::string tls_cert, tls_key, tls_ca;  // handed to all children; empty = what the environment says
  bool strict = false;
  bool verbose = false;
  bool shrinks = false;  // BPS_WORKER_LOSS=shrink: the others go on when a worker is lost

  std::vector<std::string> program;  // with its arguments
  std::string program_file;          // found in PATH
  std::string scheduler_file;
  std::string server_file;
  Environment environment;  // ours, which all children inherit
};

// The options, or the exit status to end with: everything has been printed then.
std::variant<RunOptions, int> read_options(int argc, const char* const* argv);

}  // namespace bps

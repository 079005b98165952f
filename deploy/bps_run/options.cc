#include "deploy/bps_run/options.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "deploy/bps_run/process.h"
#include "proto/base/config/config.h"
#include "proto/base/error.h"

namespace bps {
namespace {

constexpr int kUsage = 64;

int fail(int exit_status, const std::string& message) {
  std::fprintf(stderr, "bps-run: %s\n", message.c_str());
  return exit_status;
}

// Programs lie side by side, in the build tree as in an installed one.
std::string own_folder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : self.parent_path().string();
}

std::optional<int> find_daemon(const std::string& folder, const char* name, std::string& file) {
  const FoundProgram found = find_program(folder + "/" + name, {});
  file = found.file;
  if (found.problem.empty()) return std::nullopt;
  return fail(exit_code_of(ErrorCode::os),
              found.problem + "; build or install it, or name its folder with --bin-dir");
}

}  // namespace

std::variant<RunOptions, int> read_options(int argc, const char* const* argv) {
  RunOptions options;
  Config config(
      "bps-run",
      "Starts a scheduler, servers and workers on this host, shows their output, and ends with the exit "
      "status of the worker that failed first.\nA restart helps after 75 (a peer was lost), 137 and 143 (a "
      "worker was killed).");
  std::optional<std::uint32_t> workers;
  config.add("workers", workers, "Copies of PROGRAM, the ranks of one job; needed")
      .short_flag('n')
      .range(1, 4096);
  config.add("servers", options.servers, "Servers that sum").short_flag('s').range(1, 256);
  config.add("job", options.job, "Name of the job").unit("NAME");
  config.add("shards", options.shards, "Threads of each server").unit("auto|N");
  config.add("timeout", options.timeout, "End the run after this time with status 75; 0 = never");
  config.add("grace", options.grace,
             "Time for workers to end by themselves, once another has failed or a signal has come");
  config.add("start-timeout", options.start_timeout, "How long scheduler and servers may take to listen");
  config.add("bin-dir", options.bin_dir, "Folder of bps-scheduler and bps-server; default: that of bps-run")
      .unit("DIR");
  config.add("tls-cert", options.tls_cert, "For scheduler, servers and workers: their certificate")
      .unit("FILE");
  config.add("tls-key", options.tls_key, "Its key").unit("FILE");
  config.add("tls-ca", options.tls_ca, "Who must have signed it").unit("FILE");
  config.add("strict", options.strict, "Status 70 if a scheduler or server ended badly and no worker did");
  config.add("verbose", options.verbose, "Show what the daemons log at level info, and what bps-run does");
  config.add_arguments(options.program, "-- PROGRAM [ARG...]", "What each worker runs", true);
  if (const auto exit_status = config.parse_or_exit(argc, argv, Logger("bps-run"))) return *exit_status;

  if (!workers) return fail(kUsage, "how many workers? bps-run -n WORKERS [-s SERVERS] -- PROGRAM [ARG...]");
  options.workers = *workers;
  if (options.program.empty())
    return fail(kUsage, "which program? bps-run -n WORKERS [-s SERVERS] -- PROGRAM [ARG...]");

  options.environment = environment_now();
  for (const auto& [name, value] :
       {std::pair{"BPS_TLS_CERT", &options.tls_cert}, std::pair{"BPS_TLS_KEY", &options.tls_key},
        std::pair{"BPS_TLS_CA", &options.tls_ca}}) {
    if (!value->empty()) options.environment[name] = *value;
  }
  const auto transport = options.environment.find("BPS_TRANSPORT");
  if (transport != options.environment.end() && transport->second == "rdma")
    return fail(
        exit_code_of(ErrorCode::configuration),
        "BPS_TRANSPORT is rdma, and what bps-run starts listens on loopback, which no RDMA device has; "
        "start the programs one by one on the address of a device, or measure with bps-bench "
        "--transport rdma --address HOST");
  options.shrinks = find(options.environment, "BPS_WORKER_LOSS") == "shrink";
  // Nobody starts the scheduler of a run again.
  options.environment.emplace("BPS_SCHEDULER_GRACE", "2s");
  const FoundProgram found = find_program(options.program[0], options.environment);
  if (!found.problem.empty()) return fail(found.exit_status, found.problem);
  options.program_file = found.file;
  if (options.bin_dir.empty()) options.bin_dir = own_folder();
  if (const auto status = find_daemon(options.bin_dir, "bps-scheduler", options.scheduler_file))
    return *status;
  if (const auto status = find_daemon(options.bin_dir, "bps-server", options.server_file)) return *status;
  return options;
}

}  // namespace bps

// bps-bench: measures bps on this host against what the machine can do. See bench/README.md.
#include <fmt/core.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "bench/raw_server.h"
#include "bench/subcommands.h"
#include "bench/worker.h"

namespace {

constexpr const char* kUsage =
    "usage: bps-bench pushpull|latency|floor [flags]\n"
    "\n"
    "  pushpull   push_pull of a large tensor: GB/s, CPU seconds per GB; with --floor also raw TCP, in "
    "turns\n"
    "  latency    small push_pulls against a raw TCP echo, in turns\n"
    "  floor      raw TCP that moves the same bytes between as many processes\n"
    "\n"
    "bps-bench pushpull --help, and so on, lists the flags. bps-scheduler and bps-server must lie beside "
    "bps-bench.\n";

int fail(const bps::Error& error) {
  fmt::print(stderr, "bps-bench: {}\n", bps::to_string(error));
  if (error.code == bps::ErrorCode::cancelled) return 128 + SIGINT;  // as a shell says it
  return bps::exit_code_of(error.code);
}

// A process that bps-bench has started of itself.
int run_part(std::string_view role, const std::vector<std::string>& arguments) {
  const auto options = bps::bench::parse_worker_options(arguments);
  if (!options) return fail(options.error());
  bps::Status status;
  if (role == "worker") {
    status = bps::bench::run_worker(*options);
  } else if (options->raw == bps::bench::RawKind::echo) {
    status = bps::bench::run_echo_server(*options);
  } else {
    status = bps::bench::run_floor_server(*options);
  }
  return status.ok() ? 0 : fail(status.error());
}

int run_subcommand(bps::bench::Subcommand subcommand, int argc, char** argv) {
  using bps::bench::Subcommand;
  bps::bench::Options options;
  if (const auto exit_status = bps::bench::parse_options(subcommand, argc, argv, options))
    return *exit_status;
  const auto outcome = subcommand == Subcommand::pushpull  ? bps::bench::run_pushpull(options)
                       : subcommand == Subcommand::latency ? bps::bench::run_latency(options)
                                                           : bps::bench::run_floor(options);
  if (!outcome) return fail(outcome.error());
  if (const auto status = bps::bench::write_report(options, outcome->series, outcome->ratios); !status) {
    return fail(status.error());
  }
  for (const bps::bench::Series& series : outcome->series) {
    if (!series.wrong.empty()) {
      return fail(
          bps::make_error(bps::ErrorCode::internal, series.name + " gave a wrong result: " + series.wrong));
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first == "worker" || first == "raw-server") return run_part(first, {argv + 2, argv + argc});
  if (first == "pushpull") return run_subcommand(bps::bench::Subcommand::pushpull, argc - 1, argv + 1);
  if (first == "latency") return run_subcommand(bps::bench::Subcommand::latency, argc - 1, argv + 1);
  if (first == "floor") return run_subcommand(bps::bench::Subcommand::floor, argc - 1, argv + 1);
  if (first == "--help" || first == "-h") {
    fmt::print("{}", kUsage);
    return 0;
  }
  if (first == "--version") {
    fmt::print("bps-bench {}\n", BPS_VERSION);
    return 0;
  }
  fmt::print(stderr, "bps-bench: {}\n{}",
             first.empty() ? "which benchmark?" : "there is no benchmark '" + std::string(first) + "'",
             kUsage);
  return bps::exit_code_of(bps::ErrorCode::invalid_argument);
}

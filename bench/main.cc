// bps-bench: measures bps on this host against what the machine can do. See bench/README.md.
#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "bench/commands/subcommands.h"
#include "bench/engines/raw_server.h"
#include "bench/engines/worker.h"

namespace {

std::string usage() {
  std::string names, summaries;
  for (const bps::bench::Subcommand& subcommand : bps::bench::subcommands()) {
    names += (names.empty() ? "" : "|") + std::string(subcommand.name);
    summaries += fmt::format("  {:<9}  {}\n", subcommand.name, subcommand.summary);
  }
  return fmt::format(
      "usage: bps-bench {} [flags]\n\n{}\n"
      "bps-bench pushpull --help, and so on, lists the flags. bps-scheduler and bps-server must lie beside "
      "bps-bench.\n",
      names, summaries);
}

// A process that bps-bench has started of itself.
int run_part(std::string_view role, const std::vector<std::string>& arguments) {
  const auto options = bps::bench::parse_worker_options(arguments);
  if (!options) return bps::bench::fail(options.error());
  const bps::Status status =
      role == "worker" ? bps::bench::run_worker(*options) : bps::bench::run_raw_server(*options);
  return status.ok() ? 0 : bps::bench::fail(status.error());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first == "worker" || first == "raw-server") return run_part(first, {argv + 2, argv + argc});
  for (const bps::bench::Subcommand& subcommand : bps::bench::subcommands()) {
    if (first == subcommand.name) return subcommand.run(argc - 1, argv + 1);
  }
  if (first == "--help" || first == "-h") {
    fmt::print("{}", usage());
    return 0;
  }
  if (first == "--version") {
    fmt::print("bps-bench {}\n", BPS_VERSION);
    return 0;
  }
  fmt::print(stderr, "bps-bench: {}\n{}",
             first.empty() ? "which benchmark?" : "there is no benchmark '" + std::string(first) + "'",
             usage());
  return bps::exit_code_of(bps::ErrorCode::invalid_argument);
}

// The command lines of bps-bench.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bench/cluster.h"
#include "proto/base/units.h"

namespace bps::bench {

struct Options {
  std::uint32_t workers = 2;
  std::uint32_t servers = 2;
  ByteSize bytes{100'000'000};
  std::string dtype = "f32";
  std::uint32_t iters = 10;
  std::uint32_t warmup = 2;
  std::string json;  // file, "-" = stdout, empty = a table on stdout
  std::string congestion_control = "cubic";
  bool verbose = false;
  // Not of `floor`.
  std::optional<ByteSize> partition_bytes;
  std::optional<ByteSize> credit_bytes;
  bool retain = true;
  std::string shards = "auto";
  // Of `pushpull`.
  bool floor = false;

  // For the processes; the subcommand adds what is raw.
  Result<ClusterOptions> cluster() const;
};

enum class Subcommand : std::uint8_t { pushpull, latency, floor };

// Fills `options` from its defaults, the command line, the environment and the configuration file. Returns an
// exit status if the program should end now.
std::optional<int> parse_options(Subcommand subcommand, int argc, const char* const* argv, Options& options);

}  // namespace bps::bench

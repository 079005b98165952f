// The flags that subcommands share. A subcommand takes the groups that it has a use for.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "bench/cluster/cluster.h"
#include "proto/base/config/config.h"
#include "proto/base/config/units.h"

namespace bps::bench {

struct Options {
  std::uint32_t workers = 2;  // ranks
  std::uint32_t clients = 1;  // of them in a process
  std::uint32_t servers = 2;
  ByteSize bytes{100'000'000};
  std::string dtype = "f32";
  std::uint32_t iters = 10;
  std::uint32_t warmup = 2;
  std::string json;  // file, "-" = stdout, empty = a table on stdout
  std::string congestion_control = "cubic";
  bool verbose = false;
  // Links.
  std::optional<BitRate> link;
  std::optional<BitRate> slow_server;
  std::optional<Duration> delay;
  std::string loss;
  std::optional<BitRate> goodput;
  std::uint32_t colocated = 0;
  std::string netlab;
  std::string address;
  // Of the library and its servers.
  std::optional<ByteSize> partition_bytes;
  std::optional<ByteSize> credit_bytes;
  bool retain = true;
  std::string memory{kMemoryUses[0]};
  std::string transport{kTransportUses[0]};
  bool checksum = false;
  bool tls = false;
  TlsFiles tls_files;
  std::string shards = "auto";
  std::string local_group{kGroupUses[0]};
  std::string exchange{kExchangeUses[0]};
  std::uint32_t groups = 1;
  bool unnamed = false;
  // Of what is pushed and pulled.
  std::uint32_t tensors = 1;
  bool in_place = false;
  std::string device = "host";   // or "cuda"
  std::uint32_t product = 1024;  // of cuda: edge of the matrices that are multiplied meanwhile, 0: none

  bool on_gpus() const { return device == "cuda"; }
  // For the processes; the subcommand adds the engines.
  Result<ClusterOptions> cluster() const;
  // An engine that runs the library, and what a report says about it.
  EngineOptions engine(EngineKind kind) const;
  nlohmann::ordered_json engine_settings() const;
};

void add_json_flag(Config& config, std::string& json);
// --bytes and what follows.
void add_common_flags(Config& config, Options& options);
void add_run_flags(Config& config, Options& options);
// Those of them that have nothing to do with servers.
void add_worker_flags(Config& config, Options& options);
void add_link_flags(Config& config, Options& options);
void add_library_flags(Config& config, Options& options);
// Those of them that a worker's engine has.
void add_engine_flags(Config& config, Options& options);
// Of pushpull, the second also of replay.
void add_memory_flags(Config& config, Options& options);
void add_device_flag(Config& config, Options& options);
void add_product_flag(Config& config, Options& options);
void add_protection_flags(Config& config, Options& options);
void add_tls_files(Config& config, Options& options);
void add_tensor_flags(Config& config, Options& options);

}  // namespace bps::bench

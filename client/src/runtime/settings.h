// The settings of a client: what the program gave in bps_options, else BPS_* variables, else the config file,
// else the launcher's variables (rank and size), else the default. Pure: the environment is a parameter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/src/runtime/client_config.h"
#include "proto/base/config/env.h"
#include "proto/base/log/log.h"
#include "proto/base/result.h"
#include "proto/transport/rdma/device/rdma_device.h"
#include "proto/transport/tls/tls_context.h"

namespace bps {

// What the program gave; nothing = not set. Numbers are checked by read_settings.
struct GivenOptions {
  std::optional<std::string> scheduler;
  std::optional<std::string> job;
  std::optional<std::string> config_file;
  std::optional<std::string> key_file;
  std::optional<std::string> tls_cert, tls_key, tls_ca;
  std::optional<std::string> congestion_control;
  std::optional<std::string> transport;
  std::optional<std::string> rdma_device;
  std::optional<std::int64_t> rdma_gid, rdma_tclass;
  std::optional<std::int64_t> rank, world_size, local_rank, local_size;
  std::optional<std::int64_t> join_timeout_ms, operation_timeout_ms, scheduler_grace_ms;
  std::optional<std::int64_t> partition_bytes, credit_bytes;
  std::optional<bool> retain;
  std::optional<bool> checksum;
  std::optional<std::int64_t> mode;
  std::optional<std::int64_t> worker_loss;
  std::optional<bool> unequal_sums;
  std::optional<std::int64_t> staleness;  // BPS_STALENESS_UNBOUNDED is -2
  std::optional<std::int64_t> bandwidth_bps;
  std::optional<std::string> local_group;
  std::optional<std::int64_t> pinned_max_bytes, cuda_device;
};

struct ClientSettings {
  ClientConfig config;
  bool embedded = false;  // scheduler "embedded:"; config.scheduler is filled in when that runs
  Duration operation_timeout = std::chrono::seconds(300);
  std::string congestion_control;
  SharedTls tls;      // null: none
  VerbsOptions rdma;  // for transport rdma
  bool checksum = false;
  std::size_t pinned_max = std::size_t{1} << 30;  // bytes of host memory that are registered with a GPU
  std::optional<std::uint32_t> cuda_device;       // not set: see CudaWorker
  std::optional<LogLevel> log_level;
  std::vector<std::string> warnings;
};

Result<ClientSettings> read_settings(const GivenOptions& given, const Environment& environment);

}  // namespace bps

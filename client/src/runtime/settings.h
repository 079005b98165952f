// The settings of a client: what the program gave in bps_options, else BPS_* variables, else the config file,
// else the launcher's variables (rank and size), else the default. A new setting is a row of define() in the
// source file, and one in client/README.md. Pure: the environment is a parameter.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/src/runtime/client_config.h"
#include "proto/base/config/env.h"
#include "proto/base/log/log.h"
#include "proto/base/result.h"
#include "proto/transport/rdma/device/rdma_device.h"
#include "proto/transport/tls/tls_context.h"

namespace bps {

// What the program gave, by the names and with the texts of variables and file: {"rdma-tclass", "104"}.
using GivenSettings = std::map<std::string, std::string, std::less<>>;

struct ClientSettings {
  ClientConfig config;
  bool embedded = false;  // scheduler "embedded:"; config.scheduler is filled in when that runs
  bool alone = false;     // embedded because nothing that is set speaks of other processes
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

// Is there a setting of that name, and is the text one of its values? Errors: `invalid_argument` for the
// name, with the nearest one as advice; `configuration` for the value.
Status check_setting(std::string_view name, std::string_view text);

// Also checks what settings mean together. Where nothing that is set speaks of a cluster or of a place in a
// job, the worker is alone: rank 0 of 1, embedded. Errors: those of check_setting; else `configuration`, with
// advice that also names variables which are no settings.
Result<ClientSettings> read_settings(const GivenSettings& given, const Environment& environment);

}  // namespace bps

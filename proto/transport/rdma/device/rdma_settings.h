// What users say about RDMA devices, in servers and workers alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/base/config/config.h"
#include "proto/transport/rdma/device/rdma_device.h"

namespace bps {

struct RdmaSettings {
  std::string device;  // "mlx5_0", "mlx5_0:1"; empty: all
  std::optional<std::uint32_t> gid;
  std::optional<std::uint32_t> traffic_class;
};

// `settings` must outlive `config`. The traffic class is the choice of who connects.
void add_rdma_settings(Config& config, RdmaSettings& settings, bool connects);

// Errors: `invalid_argument`.
Result<VerbsOptions> verbs_options(const RdmaSettings& settings);

}  // namespace bps

// The RDMA devices of this host, by libibverbs and librdmacm. Both are looked for when a program runs, so
// that it runs without them, too; and a build without their headers has this function all the same.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "proto/transport/rdma/verbs.h"

namespace bps {

struct VerbsOptions {
  std::string device;                         // only this one, "mlx5_0"; empty: all
  std::optional<std::uint8_t> traffic_class;  // of what is sent over RoCE
};

// Errors: `os`, with the reason why there is none: the build, the libraries, the kernel, or the devices.
Result<std::shared_ptr<Verbs>> open_verbs(VerbsOptions options = {});

}  // namespace bps

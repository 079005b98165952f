// NCCL, by libnccl.so.2, looked for when the program runs. It in turn loads the driver when it is first used.
#pragma once

#include <memory>

#include "client/src/gpu/nccl/nccl_api.h"
#include "proto/base/result.h"

namespace bps {

// 2.14 or newer. Errors: `configuration`, "no NCCL: " and why. `library` is what dlopen is given. It stays
// loaded.
Result<std::shared_ptr<NcclApi>> open_nccl(const char* library = "libnccl.so.2");

}  // namespace bps

// The GPUs of this machine, by libcuda.so.1, which comes with NVIDIA's driver. It is looked for when a
// program runs, so that the program runs without it, too.
#pragma once

#include <memory>

#include "client/src/gpu/driver/cuda_api.h"
#include "proto/base/result.h"

namespace bps {

// Initialised, with one device at least. Errors: `configuration`, "no GPU: " and the reason why there is
// none: the library, its age, the kernel's driver, or the devices. `library` is what dlopen is given. The
// library stays loaded.
Result<std::shared_ptr<CudaApi>> open_cuda(const char* library = "libcuda.so.1");

}  // namespace bps

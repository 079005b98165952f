// What GPUs can do without the product: copies to and from the host, by size of the single copy, and NCCL
// between the GPUs of this host, by size of the tensor; all in turns, so that all see the same machine.
#pragma once

#include <cstdint>
#include <memory>

#include "bench/commands/report.h"
#include "bench/gpu/gpu.h"
#include "client/src/gpu/nccl/nccl_api.h"

namespace bps::bench {

struct GpuFloorOptions {
  std::uint64_t bytes = 256 << 20;  // that each turn copies, and the largest copy and tensor
  std::uint32_t iters = 10;         // turns that count
  std::uint32_t warmup = 1;         // turns before them
};

// One line "gpu" per GPU, one "gpu copy" per GPU, way and size, and one "nccl" per call and size. `nccl`:
// null: without. Wrong copies and sums are in Outcome::wrong. One thread.
Result<Outcome> measure_gpu_floor(const GpuFloorOptions& options, std::shared_ptr<CudaApi> cuda,
                                  std::shared_ptr<NcclApi> nccl, const Now& now);

}  // namespace bps::bench

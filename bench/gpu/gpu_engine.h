// What a worker does with a GPU: push_pulls of the GPU's memory, and what they are compared with.
#pragma once

#include <memory>
#include <string>

#include "bench/cluster/worker_options.h"
#include "bench/engines/engine.h"
#include "bench/gpu/gpu.h"

namespace bps::bench {

// The GPUs of this machine, or virtual ones.
struct GpuMachine {
  std::shared_ptr<CudaApi> cuda;
  Now now;
};
Result<GpuMachine> open_gpu_machine();

// Worker `index` has GPU `index` modulo their number.
Result<Gpu> gpu_of_worker(const GpuMachine& machine, std::uint32_t index);

// Two ranks of NCCL on one GPU are refused, unless they say that they are on different hosts; then they talk
// through sockets. So fewer GPUs than workers can show that sums are right, and nothing about time.
// Before there are threads that read the environment.
void let_ranks_share_gpus(const WorkerOptions& options, const EngineOptions& engine, CudaApi& cuda);

// push_pull of all tensors, in memory of the GPU; with EngineOptions::product, while matrices are multiplied.
// What is pushed is made, and what is pulled is compared, on the host.
std::unique_ptr<Engine> make_gpu_pushpull_engine(const WorkerOptions& options, const EngineOptions& engine,
                                                 std::string job, Gpu gpu, GpuMachine machine);

// As many bytes to the host and to the GPU, at once, in pinned copies.
std::unique_ptr<Engine> make_gpu_copies_engine(const WorkerOptions& options, Gpu gpu, GpuMachine machine);

// Matrix products alone.
std::unique_ptr<Engine> make_gpu_product_engine(const EngineOptions& engine, Gpu gpu, GpuMachine machine);

}  // namespace bps::bench

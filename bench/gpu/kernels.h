// What the benchmark needs of NVIDIA's driver beyond the library's table: to run a kernel. As there, by
// libcuda.so.1, opened when the program runs, or by a virtual GPU in tests.
#pragma once

#include <memory>

#include "client/local/cuda/cuda_api.h"
#include "proto/base/result.h"

namespace bps::bench {

// In the context that is current. Any thread.
class Kernels {
 public:
  virtual ~Kernels() = default;
  // Of a PTX text, which the driver translates for its GPU.
  virtual CudaCode load(CudaModule& module, const char* ptx) = 0;
  virtual CudaCode unload(CudaModule module) = 0;
  virtual CudaCode find(CudaKernel& kernel, CudaModule module, const char* name) = 0;
  // `arguments`: a pointer to each; they are read now.
  virtual CudaCode launch(CudaKernel kernel, const CudaGrid& grid, void** arguments, CudaStream stream) = 0;
};

Result<std::shared_ptr<Kernels>> open_kernels(const char* library = "libcuda.so.1");

}  // namespace bps::bench

// For tests: kernels on virtual GPUs. Knows the one of matrix_product_ptx.inc, by its name.
#pragma once

#include <cstring>
#include <string>

#include "bench/gpu/kernels.h"
#include "client/local/cuda/fake/fake_cuda.h"

namespace bps::bench {

class FakeKernels final : public Kernels {
 public:
  explicit FakeKernels(FakeCuda& cuda) : cuda_(cuda) {}

  bool is_wrong = false;  // results are

  CudaCode load(CudaModule& module, const char* ptx) override {
    if (std::strstr(ptx, ".visible .entry bps_product(") == nullptr) return CudaCode::invalid_value;
    module = reinterpret_cast<CudaModule>(this);
    ++loaded_;
    return CudaCode::success;
  }
  CudaCode unload(CudaModule) override { return --loaded_, CudaCode::success; }
  CudaCode find(CudaKernel& kernel, CudaModule, const char* name) override {
    if (std::string(name) != "bps_product") return CudaCode::invalid_value;
    kernel = reinterpret_cast<CudaKernel>(this);
    return CudaCode::success;
  }
  CudaCode launch(CudaKernel, const CudaGrid& grid, void** arguments, CudaStream stream) override {
    const auto* const a = *static_cast<float**>(arguments[0]);
    const auto* const b = *static_cast<float**>(arguments[1]);
    auto* const c = *static_cast<float**>(arguments[2]);
    const std::size_t n = *static_cast<std::uint32_t*>(arguments[3]);
    if (grid.blocks_x * grid.threads_x != n || grid.blocks_y * grid.threads_y != n)
      return CudaCode::invalid_value;
    const std::size_t bytes = n * n * sizeof(float);
    cuda_.enqueue(stream, {.may_start = nullptr,
                           .finish =
                               [=, wrong = is_wrong] {
                                 multiply(a, b, c, n);
                                 if (wrong) c[n / 2 * n] += 1;
                               },
                           .memory = {{a, bytes}, {b, bytes}, {c, bytes}}});
    return CudaCode::success;
  }
  // Whether it is one that was made here.
  bool has(const void* handle) const { return handle == this; }
  int loaded() const { return loaded_; }

 private:
  static void multiply(const float* a, const float* b, float* c, std::size_t n) {
    for (std::size_t row = 0; row < n; ++row) {
      for (std::size_t column = 0; column < n; ++column) {
        float sum = 0;
        for (std::size_t k = 0; k < n; ++k)
          sum += a[row * n + k] * b[k * n + column];
        c[row * n + column] = sum;
      }
    }
  }

  FakeCuda& cuda_;
  int loaded_ = 0;
};

}  // namespace bps::bench

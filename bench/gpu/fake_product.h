// For tests: the product of matrix_product_ptx.inc on virtual GPUs, computed by the host.
//
// Owner: whoever has the FakeCuda; goes when nothing is launched there any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "client/src/gpu/testing/fake_cuda.h"

namespace bps::bench {

class FakeProduct {
 public:
  explicit FakeProduct(FakeCuda& cuda) {
    cuda.play("bps_product",
              [this](const CudaGrid& grid, void** arguments) { return launch(grid, arguments); });
  }
  FakeProduct(const FakeProduct&) = delete;
  FakeProduct& operator=(const FakeProduct&) = delete;

  bool is_wrong = false;  // results are

 private:
  std::optional<FakeCuda::Work> launch(const CudaGrid& grid, void** arguments) const {
    const auto* const a = *static_cast<float**>(arguments[0]);
    const auto* const b = *static_cast<float**>(arguments[1]);
    auto* const c = *static_cast<float**>(arguments[2]);
    const std::size_t n = *static_cast<std::uint32_t*>(arguments[3]);
    if (grid.blocks_x * grid.threads_x != n || grid.blocks_y * grid.threads_y != n) return std::nullopt;
    const std::size_t bytes = n * n * sizeof(float);
    const auto finish = [=, wrong = is_wrong] {
      multiply(a, b, c, n);
      if (wrong) c[n / 2 * n] += 1;
    };
    return FakeCuda::Work{.may_start = {}, .finish = finish, .memory = {{a, bytes}, {b, bytes}, {c, bytes}}};
  }
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
};

}  // namespace bps::bench

#include "client/src/gpu/gpu_walk.h"

#include <fmt/core.h>

#include <catch2/catch.hpp>

#include "client/src/gpu/fake/fake_cuda.h"
#include "client/src/gpu/real_cuda.h"

namespace bps {
namespace {

using testing::GpuWalk;

TEST_CASE("gpu walk: over a virtual GPU") {
  for (const std::size_t pinned_max : {std::size_t{1} << 30, std::size_t{0}}) {
    GpuWalk walk;
    const auto cuda = std::make_shared<FakeCuda>(walk.clock());
    walk.go(cuda, 12 * 1024, pinned_max);
    CHECK(cuda->left() == FakeCuda::Left{});
    CHECK(cuda->misuses().empty());
  }
}

// tests/gpu.sh reads what this prints.
TEST_CASE("gpu walk: over the GPU of this machine", "[gpu]") {
  const auto cuda = open_cuda();
  if (!cuda) {
    fmt::print("gpu: not run: {}\n", cuda.error().message);
    return;
  }
  for (const std::size_t pinned_max : {std::size_t{1} << 30, std::size_t{0}}) {
    GpuWalk walk;
    constexpr std::size_t kBytes = 4 << 20;
    const GpuWalk::Times times = walk.go(*cuda, kBytes, pinned_max);
    fmt::print("gpu: 64 MiB, {} memory: to host {:.1f} GB/s, to device {:.1f} GB/s\n",
               pinned_max > 0 ? "registered" : "ordinary", 16 * kBytes / times.to_host_seconds * 1e-9,
               16 * kBytes / times.to_device_seconds * 1e-9);
  }
}

}  // namespace
}  // namespace bps

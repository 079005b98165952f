// For tests: virtual GPUs in virtual time, which goes on whenever it is asked for.
#pragma once

#include <catch2/catch.hpp>
#include <memory>

#include "bench/gpu/fake_product.h"
#include "bench/gpu/gpu.h"
#include "client/src/gpu/nccl/testing/fake_nccl.h"
#include "client/src/gpu/testing/fake_cuda.h"
#include "proto/base/loop/virtual_loop.h"

namespace bps::bench {

// When it goes, nothing may be left, and no rule may have been broken.
struct VirtualGpus {
  explicit VirtualGpus(int devices = 1)
      : cuda(std::make_shared<FakeCuda>(loop, FakeCuda::Options{.devices = devices})),
        nccl(std::make_shared<FakeNccl>(world, *cuda)),
        product(*cuda),
        now([this] {
          loop.run_for(std::chrono::microseconds(5));
          return loop.now();
        }) {}
  ~VirtualGpus() {
    CHECK(cuda->left() == FakeCuda::Left{});
    CHECK(cuda->misuses().empty());
    CHECK(nccl->left() == 0);
    CHECK(nccl->misuses().empty());
    CHECK(world.differences().empty());
  }
  Gpu gpu(int ordinal = 0) { return CudaDevice::open(cuda, ordinal).value(); }

  VirtualLoop loop;
  FakeNcclWorld world;
  std::shared_ptr<FakeCuda> cuda;
  std::shared_ptr<FakeNccl> nccl;
  FakeProduct product;
  Now now;
};

}  // namespace bps::bench

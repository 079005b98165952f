#include "bench/gpu/gpu_engine.h"

#include <catch2/catch.hpp>

#include "bench/gpu/matrix_product.h"
#include "bench/gpu/virtual_gpus.h"

namespace bps::bench {
namespace {

using Catch::Contains;

GpuMachine machine_of(VirtualGpus& gpus) { return {gpus.cuda, gpus.now}; }

TEST_CASE("gpu engine: copies both ways are made and compared") {
  VirtualGpus gpus;
  WorkerOptions options;
  options.bytes = 10'000;
  options.tensors = 3;
  const auto engine = make_gpu_copies_engine(options, gpus.gpu(), machine_of(gpus));
  REQUIRE(engine->join().ok());
  for (std::uint64_t round = 0; round < 2; ++round) {
    REQUIRE(engine->prepare(round).ok());
    const Status before = engine->check(round);
    REQUIRE_FALSE(before.ok());
    CHECK_THAT(before.error().message, Contains("of 30000 is wrong"));
    REQUIRE(engine->prepare(round).ok());
    REQUIRE(engine->run(round).ok());
    CHECK(engine->check(round).ok());
  }
}

TEST_CASE("gpu engine: matrix products are counted") {
  VirtualGpus gpus;
  EngineOptions options;
  options.product = 32;
  const auto engine = make_gpu_product_engine(options, gpus.gpu(), machine_of(gpus));
  REQUIRE(engine->join().ok());
  REQUIRE(engine->run(0).ok());
  const std::uint64_t bytes = engine->background_bytes();
  CHECK(bytes >= 64 * 32 * 32 * sizeof(float));
  REQUIRE(engine->check(0).ok());
  CHECK(engine->background_bytes() == bytes);
}

TEST_CASE("gpu engine: a few products are under way while somebody looks") {
  VirtualGpus gpus;
  const auto product = MatrixProduct::make(gpus.gpu(), 16, gpus.now).value();
  CHECK(product->completed() == 1);  // the one that was compared
  REQUIRE(product->keep_busy().ok());
  CHECK_FALSE(gpus.cuda->is_idle());
  REQUIRE(product->finish().ok());
  CHECK(product->completed() == 5);
  CHECK(gpus.cuda->is_idle());
}

TEST_CASE("gpu engine: a wrong product is seen") {
  VirtualGpus gpus;
  gpus.product.is_wrong = true;
  const auto product = MatrixProduct::make(gpus.gpu(), 64, gpus.now);
  REQUIRE_FALSE(product.ok());
  CHECK(product.error().message == "a product of matrices on GPU 0 (Fake 0) is wrong, near row and column 0");
}

TEST_CASE("gpu engine: a call that fails is named, and leaves nothing") {
  std::uint64_t calls = 0;
  {
    VirtualGpus gpus;
    REQUIRE(MatrixProduct::make(gpus.gpu(), 16, gpus.now).ok());
    calls = gpus.cuda->calls();
  }
  std::uint64_t refused = 0;
  for (std::uint64_t number = 3; number < calls; ++number) {  // the first open the device
    VirtualGpus gpus;
    gpus.cuda->fail_call(number, CudaCode::launch_failed, false);
    const auto product = MatrixProduct::make(gpus.gpu(), 16, gpus.now);
    if (product) continue;
    CHECK_THAT(product.error().message, Contains("cu") && Contains("GPU 0 (Fake 0)"));
    ++refused;
  }
  CHECK(refused > 10);
}

TEST_CASE("gpu engine: workers take GPUs in turn") {
  VirtualGpus gpus(2);
  const GpuMachine machine = machine_of(gpus);
  for (std::uint32_t index = 0; index < 5; ++index)
    CHECK(gpu_of_worker(machine, index).value()->ordinal() == static_cast<int>(index % 2));
}

}  // namespace
}  // namespace bps::bench

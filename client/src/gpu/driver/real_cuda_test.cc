#include "client/src/gpu/driver/real_cuda.h"

#include <catch2/catch.hpp>

#include "client/src/gpu/nccl/real_nccl.h"

namespace bps {
namespace {

using Catch::StartsWith;

// On whatever machine this runs: a GPU, or a reason. Both are opened, never linked.
TEST_CASE("real cuda: there is a GPU, or a message why there is none") {
  const auto cuda = open_cuda();
  if (cuda) {
    int count = 0;
    CHECK((*cuda)->device_count(count) == CudaCode::success);
    CHECK(count >= 1);
    CHECK_THAT((*cuda)->describe(CudaCode::out_of_memory), StartsWith("CUDA_ERROR_OUT_OF_MEMORY"));
    return;
  }
  CHECK(cuda.error().code == ErrorCode::configuration);
  CHECK_THAT(cuda.error().message, StartsWith("no GPU: "));
  CHECK_FALSE(cuda.error().advice.empty());
}

TEST_CASE("real cuda: another library is no driver") {
  const auto cuda = open_cuda("libm.so.6");
  REQUIRE_FALSE(cuda);
  CHECK(cuda.error().message == "no GPU: libm.so.6 has no cuInit: too old, or not NVIDIA's driver");
  const auto none = open_cuda("libno-such-driver.so");
  REQUIRE_FALSE(none);
  CHECK_THAT(none.error().message,
             StartsWith("no GPU: libno-such-driver.so: cannot open shared object file"));
}

TEST_CASE("real nccl: it is there, or a message why not") {
  const auto nccl = open_nccl();
  if (nccl) {
    CHECK((*nccl)->describe(NcclCode::invalid_argument, nullptr) != "");
  } else {
    CHECK(nccl.error().code == ErrorCode::configuration);
    CHECK_THAT(nccl.error().message, StartsWith("no NCCL: "));
    CHECK_FALSE(nccl.error().advice.empty());
  }
  const auto other = open_nccl("libm.so.6");
  REQUIRE_FALSE(other);
  CHECK(other.error().message == "no NCCL: libm.so.6 has no ncclGetVersion: too old, or another library");
}

}  // namespace
}  // namespace bps

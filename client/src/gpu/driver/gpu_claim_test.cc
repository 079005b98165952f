#include "client/src/gpu/driver/gpu_claim.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <optional>

namespace bps {
namespace {

using Ranks = std::vector<std::uint32_t>;

TEST_CASE("gpu claim: ranks of a job that have the same GPU hear of each other") {
  const std::string job = "127.0.0.1:4710/job of process " + std::to_string(::getpid());
  const CudaDeviceId gpu{0xff, 1, 2}, other_gpu{0xff, 1, 3};
  std::optional<GpuClaim> first(std::in_place, gpu, job, 0);
  CHECK(first->others() == Ranks{});
  const GpuClaim twelfth(gpu, job, 12);
  CHECK(twelfth.others() == Ranks{0});
  const GpuClaim second(gpu, job, 1);
  CHECK(second.others() == Ranks{0, 12});
  CHECK(GpuClaim(other_gpu, job, 2).others() == Ranks{});
  CHECK(GpuClaim(gpu, job + " and another", 2).others() == Ranks{});
  // The same rank once more: the first claim stands.
  CHECK(GpuClaim(gpu, job, 1).others() == Ranks{0, 12});
  // What has gone claims nothing.
  first.reset();
  CHECK(GpuClaim(gpu, job, 2).others() == Ranks{1, 12});
  CHECK(GpuClaim(gpu, job, 3).others() == Ranks{1, 12});
}

}  // namespace
}  // namespace bps

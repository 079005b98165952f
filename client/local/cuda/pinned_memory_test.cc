#include "client/local/cuda/pinned_memory.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "client/local/cuda/cuda_copier.h"
#include "client/local/cuda/fake/fake_cuda.h"
#include "client/local/cuda/stream_words.h"
#include "proto/base/virtual_loop.h"

namespace bps {
namespace {

struct Gpu {
  Gpu() : cuda(std::make_shared<FakeCuda>(loop)), device(CudaDevice::open(cuda, 0).value()) {}
  VirtualLoop loop;
  std::shared_ptr<FakeCuda> cuda;
  std::shared_ptr<CudaDevice> device;
};

TEST_CASE("pinned memory: what the driver does not register is ordinary memory") {
  Gpu g;
  const auto memory = std::make_shared<PinnedMemory>(g.device, allocate_ordinary_region, 1 << 20);
  g.cuda->fail_next(CudaCall::register_host, 0, CudaCode::out_of_memory);
  const auto refused = memory->allocate(4096);
  REQUIRE(refused);
  CHECK_FALSE(memory->holds(refused->get()));
  CHECK(memory->bytes() == 0);
  {
    const auto pinned = memory->allocate(4096);
    REQUIRE(pinned);
    CHECK(memory->holds(pinned->get()));
    CHECK(memory->bytes() == 4096);
  }
  CHECK(g.cuda->left().registrations == 0);
  g.cuda->fail_next(CudaCall::register_host, 0, CudaCode::launch_failed, /*lost=*/true);
  const auto lost = memory->allocate(4096);
  REQUIRE_FALSE(lost);
  CHECK_THAT(lost.error().message, Catch::Contains("cuMemHostRegister on GPU 0"));
  CHECK(memory->bytes() == 0);
}

// KiB of this process that its children do not get.
std::size_t kept_from_children() {
  std::ifstream maps("/proc/self/smaps");
  std::size_t size = 0;
  std::size_t all = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.rfind("Size:", 0) == 0) size = std::stoul(line.substr(5));
    if (line.rfind("VmFlags:", 0) == 0 && line.find(" dc") != std::string::npos) all += size;
  }
  return all;
}

TEST_CASE("pinned memory: what a GPU knows pages of does not go to children") {
  Gpu g;
  const std::size_t before = kept_from_children();
  const auto words = StreamWords::create(g.device, [] {});
  REQUIRE(words);
  const std::size_t with_words = kept_from_children();
  CHECK(with_words >= before + 4);
  const CudaDevice::Current current(*g.device);
  CudaEventPool events(*g.device);
  CudaCopier copier(*g.device, events, CudaCopier::Direction::to_host);
  REQUIRE(copier.open(0).ok());
  CHECK(kept_from_children() >= with_words + (CudaCopier::kBounceBytes >> 10));
  copier.close();
}

}  // namespace
}  // namespace bps

#include "client/src/gpu/driver/pinned_memory.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "client/src/gpu/cuda_copier.h"
#include "client/src/gpu/testing/fake_cuda.h"
#include "proto/base/loop/virtual_loop.h"

namespace bps {
namespace {

struct PinnedGpu {
  explicit PinnedGpu(std::size_t max_bytes = 1 << 20)
      : cuda(std::make_shared<FakeCuda>(loop)),
        device(CudaDevice::open(cuda, 0).value()),
        memory(std::make_shared<PinnedMemory>(loop, device, allocate_ordinary_region, max_bytes)) {}
  VirtualLoop loop;
  std::shared_ptr<FakeCuda> cuda;
  std::shared_ptr<CudaDevice> device;
  std::shared_ptr<PinnedMemory> memory;
};

TEST_CASE("pinned memory: what the driver does not register is ordinary memory") {
  PinnedGpu g;
  g.cuda->fail_next(CudaCall::register_host, 0, CudaCode::out_of_memory);
  const auto refused = g.memory->allocate(4096).value();
  g.loop.run_tasks();
  CHECK_FALSE(g.memory->holds(refused.get()));
  CHECK(g.memory->bytes() == 0);
  g.memory->leave_work_to([] { return true; });
  const auto lost = g.memory->allocate(4096).value();
  g.loop.run_tasks();
  g.cuda->fail_next(CudaCall::register_host, 0, CudaCode::launch_failed, /*lost=*/true);
  const Status status = g.memory->work();
  REQUIRE_FALSE(status.ok());
  CHECK_THAT(status.error().message, Catch::Contains("cuMemHostRegister on GPU 0"));
  CHECK(g.memory->bytes() == 0);
}

TEST_CASE("pinned memory: who allocates, and who lets go, waits for no call of the driver") {
  PinnedGpu g;
  const std::uint64_t before = g.cuda->calls();
  auto region = g.memory->allocate(4096).value();
  CHECK(g.cuda->calls() == before);
  CHECK_FALSE(g.memory->holds(region.get()));
  g.loop.run_tasks();
  CHECK(g.memory->holds(region.get()));
  CHECK(g.memory->bytes() == 4096);
  const std::uint64_t registered = g.cuda->calls();
  region.reset();
  CHECK(g.cuda->calls() == registered);
  CHECK(g.cuda->left().registrations == 1);
  g.loop.run_tasks();
  CHECK(g.cuda->left().registrations == 0);
  CHECK(g.memory->bytes() == 0);
}

TEST_CASE("pinned memory: what is let go before its turn is never registered, and the rest with the memory") {
  PinnedGpu g(8192);
  CHECK(g.memory->allocate(4096).ok());
  CHECK(g.memory->bytes() == 0);
  g.loop.run_tasks();
  CHECK(g.cuda->count(CudaCall::register_host) == 0);
  auto first = g.memory->allocate(8192).value();
  const auto beyond = g.memory->allocate(4096).value();
  g.loop.run_tasks();
  CHECK(g.memory->holds(first.get()));
  CHECK_FALSE(g.memory->holds(beyond.get()));
  // The loop does not come to it any more.
  g.memory->leave_work_to([] { return true; });
  first.reset();
  CHECK(g.cuda->left().registrations == 1);
  g.loop.run_tasks();
  g.memory.reset();
  CHECK(g.cuda->left().registrations == 0);
  CHECK(g.cuda->misuses().empty());
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
  PinnedGpu g;
  const std::size_t before = kept_from_children();
  const CudaDevice::Current current(*g.device);
  const auto events = std::make_shared<CudaEventPool>(g.device);
  CudaCopier copier(*g.device, *events, CudaCopier::Direction::to_host);
  REQUIRE(copier.open(0).ok());
  CHECK(kept_from_children() >= before + (CudaCopier::kBounceBytes >> 10));
  copier.close();
  const std::size_t without = kept_from_children();
  auto region = g.memory->allocate(1 << 20).value();
  g.loop.run_tasks();
  CHECK(kept_from_children() >= without + 1024);
  region.reset();
  g.loop.run_tasks();
  CHECK(kept_from_children() == without);
}

}  // namespace
}  // namespace bps

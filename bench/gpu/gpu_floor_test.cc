#include "bench/gpu/gpu_floor.h"

#include <catch2/catch.hpp>

#include "bench/gpu/copy_floor.h"
#include "bench/gpu/nccl_floor.h"
#include "bench/gpu/virtual_gpus.h"

namespace bps::bench {
namespace {

using Catch::Contains;

std::vector<Line> lines_of(const Outcome& outcome, const std::string& bench) {
  std::vector<Line> found;
  for (const Line& line : outcome.lines)
    if (line.at("bench") == bench) found.push_back(line);
  return found;
}

TEST_CASE("gpu floor: every way and size of copies, and NCCL, in turns") {
  VirtualGpus machine(2);
  const auto outcome =
      measure_gpu_floor({.bytes = 300'000, .iters = 3, .warmup = 1}, machine.cuda, machine.nccl, machine.now);
  REQUIRE(outcome.ok());
  CHECK(outcome->wrong.empty());
  REQUIRE(lines_of(*outcome, "gpu").size() == 2);
  CHECK(lines_of(*outcome, "gpu")[1].at("name") == "GPU 1 (Fake 1)");
  const auto copies = lines_of(*outcome, "gpu copy");
  REQUIRE(copies.size() == 2 * 3 * 2);
  CHECK(copies.front().at("way") == "to host");
  CHECK(copies.front().at("size") == 262'144);
  CHECK(copies.back().at("way") == "both ways");
  CHECK(copies.back().at("size") == 300'000);
  const auto collectives = lines_of(*outcome, "nccl");
  REQUIRE(collectives.size() == 3 * 2);
  CHECK(collectives.front().at("gpus") == 2);
  for (const Line& line : outcome->lines) {
    if (line.at("bench") == "gpu") continue;
    CHECK(line.at("verified") == true);
    CHECK(line.at("GBps") > 0);
    CHECK(line.at("low") <= line.at("GBps"));
    CHECK(line.at("GBps") <= line.at("high"));
  }
}

TEST_CASE("gpu floor: one GPU has no NCCL") {
  VirtualGpus machine;
  const auto outcome =
      measure_gpu_floor({.bytes = 4096, .iters = 1, .warmup = 0}, machine.cuda, machine.nccl, machine.now);
  REQUIRE(outcome.ok());
  CHECK(outcome->lines.size() == 1 + 3);
  CHECK(machine.nccl->calls() == 0);
}

TEST_CASE("gpu floor: the time of a run is that of its copies, and both ways are begun together") {
  VirtualGpus machine;
  const Gpu gpu = machine.gpu();
  auto floor = CopyFloor::make(gpu, 64 * 1024, machine.now).value();
  REQUIRE(floor.prepare().ok());
  const std::uint64_t before = machine.cuda->calls();
  const TimePoint begin = machine.loop.now();
  const auto seconds = floor.run(CopyWay::both, 20'000);
  REQUIRE(seconds.ok());
  CHECK(*seconds > 0);
  CHECK(*seconds <= std::chrono::duration<double>(machine.loop.now() - begin).count());
  std::string order;  // of the copies
  for (std::size_t i = before; i < machine.cuda->order().size(); ++i) {
    if (machine.cuda->order()[i] == CudaCall::copy_to_host) order += "h";
    if (machine.cuda->order()[i] == CudaCall::copy_to_device) order += "d";
    if (machine.cuda->order()[i] == CudaCall::query_stream) break;
  }
  CHECK(order == "hdhdhdhd");
  CHECK(floor.check(CopyWay::both).value().empty());
}

TEST_CASE("gpu floor: a copy that does not arrive is seen") {
  VirtualGpus machine;
  const Gpu gpu = machine.gpu();
  auto floor = CopyFloor::make(gpu, 64 * 1024, machine.now).value();
  REQUIRE(floor.prepare().ok());
  CHECK_THAT(floor.check(CopyWay::to_host).value(), Contains("byte 0 of 65536 is wrong"));
  REQUIRE(floor.run(CopyWay::to_host, 4096).ok());
  CHECK(floor.check(CopyWay::to_host).value().empty());
  CHECK_THAT(floor.check(CopyWay::both).value(), Contains("is wrong"));
}

TEST_CASE("gpu floor: a sum that is not there is seen") {
  VirtualGpus machine(3);
  const std::vector<Gpu> gpus = {machine.gpu(0), machine.gpu(1), machine.gpu(2)};
  auto floor = NcclFloor::make(machine.nccl, gpus, 100'000, machine.now).value();
  CHECK(floor->whole(100'000) == 99'996);
  REQUIRE(floor->prepare(1).ok());
  REQUIRE(floor->run(100'000).ok());
  CHECK(floor->check(1).value().empty());
  CHECK_THAT(floor->check(2).value(), Contains("GPU 0 (Fake 0): element"));
  REQUIRE(floor->prepare(2).ok());
  CHECK_THAT(floor->check(2).value(), Contains("GPU 0 (Fake 0): element"));
}

TEST_CASE("gpu floor: any call that fails ends it, with its name, and leaves nothing") {
  const GpuFloorOptions options{.bytes = 8192, .iters = 1, .warmup = 0};
  std::uint64_t cuda_calls = 0, nccl_calls = 0;
  {
    VirtualGpus machine(2);
    REQUIRE(measure_gpu_floor(options, machine.cuda, machine.nccl, machine.now).ok());
    cuda_calls = machine.cuda->calls();
    nccl_calls = machine.nccl->calls();
  }
  for (std::uint64_t number = 0; number < cuda_calls; ++number) {
    VirtualGpus machine(2);
    machine.cuda->fail_call(number, CudaCode::launch_failed, false);
    const auto outcome = measure_gpu_floor(options, machine.cuda, machine.nccl, machine.now);
    // What gives something back may fail unheard.
    if (!outcome) CHECK_THAT(outcome.error().message, Contains("cu"));
  }
  std::uint64_t refused = 0;
  for (std::uint64_t number = 0; number < nccl_calls; ++number) {
    VirtualGpus machine(2);
    machine.nccl->fail_call(number, NcclCode::system_error);
    const auto outcome = measure_gpu_floor(options, machine.cuda, machine.nccl, machine.now);
    if (outcome) continue;
    CHECK_THAT(outcome.error().message, Contains("nccl"));
    ++refused;
  }
  CHECK(refused > 10);
}

TEST_CASE("gpu floor: a GPU that never ends is given up") {
  VirtualLoop loop;  // stands still
  const auto cuda = std::make_shared<FakeCuda>(loop);
  TimePoint time{};
  const Now now = [&time] { return time += std::chrono::seconds(1); };
  const auto outcome = measure_gpu_floor({.bytes = 4096, .iters = 1}, cuda, nullptr, now);
  REQUIRE_FALSE(outcome.ok());
  CHECK(outcome.error().code == ErrorCode::deadline);
  CHECK(outcome.error().message == "GPU 0 (Fake 0) has not ended its work after 30 s");
}

}  // namespace
}  // namespace bps::bench

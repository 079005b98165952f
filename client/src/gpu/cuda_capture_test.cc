// The program captures its work into CUDA graphs while operations are under way.
#include <catch2/catch.hpp>

#include "client/src/gpu/testing/cuda_scenario.h"

namespace bps {
namespace {

using namespace std::chrono_literals;
using testing::CudaHost;
using testing::CudaScenario;

struct Capturing {
  explicit Capturing(std::uint32_t size) : host(size), scenario(host) {}
  // A stream of the program's, not ours.
  CudaStream stream() {
    CudaStream made = nullptr;
    const CudaDevice::Current current(*host.ranks[0].device);
    REQUIRE(host.ranks[0].cuda->create_stream(made, 0) == CudaCode::success);
    return made;
  }
  void end(CudaStream made) {
    {
      const CudaDevice::Current current(*host.ranks[0].device);
      CHECK(host.ranks[0].cuda->destroy_stream(made) == CudaCode::success);
    }
    for (auto& member : scenario.members) {
      member.user.reset();
      member.own.reset();
    }
    host.leave();
    CHECK(host.wrongs() == std::vector<std::string>());
  }
  CudaHost host;
  CudaScenario scenario;
};

TEST_CASE("cuda captures: operations that are under way do not end one") {
  for (std::uint32_t size = 1; size <= 2; ++size) {
    Capturing c(size);
    REQUIRE(c.scenario.open());
    const CudaStream graph = c.stream();
    c.host.ranks[0].cuda->begin_capture(graph);
    // Of another stream than the one that is captured.
    std::optional<CudaBuffers> buffers(c.host.ranks[0].device);
    const CudaStream other = c.stream();
    auto& member = c.scenario.members[0];
    bool readable = false;
    {
      const auto buffer = buffers->describe(member.user->bytes().data(), member.user->bytes().size(), other);
      REQUIRE(buffer);
      c.host.ranks[0].group->when_readable(*buffer, [&](const Status& status) { readable = status.ok(); });
    }
    CHECK(c.host.run_until([&] { return readable; }));
    CHECK(c.host.ranks[0].group->allocate(4096));
    buffers.reset();
    REQUIRE(c.scenario.collectives());
    CHECK(c.host.ranks[0].cuda->end_capture());
    {
      const CudaDevice::Current current(*c.host.ranks[0].device);
      CHECK(c.host.ranks[0].cuda->destroy_stream(other) == CudaCode::success);
    }
    c.end(graph);
  }
}

TEST_CASE("cuda captures: an operation cannot be part of one") {
  Capturing c(1);
  REQUIRE(c.scenario.open());
  const CudaStream graph = c.stream();
  c.host.ranks[0].cuda->begin_capture(graph);
  {
    CudaBuffers buffers(c.host.ranks[0].device);
    const auto& user = *c.scenario.members[0].user;
    // The default stream waits for the one that is captured.
    for (const CudaStream stream : {graph, CudaStream()}) {
      const auto buffer = buffers.describe(user.bytes().data(), user.bytes().size(), stream);
      REQUIRE_FALSE(buffer);
      CHECK(buffer.error().code == ErrorCode::invalid_argument);
    }
  }
  CHECK(c.host.ranks[0].cuda->end_capture());
  REQUIRE(c.scenario.readable());
  REQUIRE(c.scenario.collectives());
  c.end(graph);
}

}  // namespace
}  // namespace bps

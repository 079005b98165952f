// A host's local group over shared memory, as processes have it: here all of them are one.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>

#include "client/src/group/host_group.h"
#include "client/src/group/testing/host_world.h"
#include "proto/base/loop/asio_loop.h"
#include "proto/transport/shm/shm_transport.h"

namespace bps::host_group_shm_test {
namespace {

using namespace std::chrono_literals;
using testing::ExerciseTensor;

struct Host {
  explicit Host(std::uint32_t size, const ShmOptions& options = {})
      : transport(options), world(loop, transport, size, size, [] {
          static int count = 0;
          return Endpoint{"bps-host-group-test-" + std::to_string(::getpid()) + "-" + std::to_string(++count),
                          0};
        }) {
    run([&] { return world.is_connected(); });
  }
  template <class Done>
  void run(Done done) {
    const TimePoint deadline = loop.now() + 30s;
    while (!done() && loop.now() < deadline)
      loop.run_once(deadline);
    INFO(world.exercise.state() << world.closed());
    REQUIRE(done());
  }
  void finish() {
    world.exercise.go();
    run([&] { return world.exercise.is_done(); });
    world.exercise.check();
  }
  std::shared_ptr<Region> region(std::size_t bytes) { return transport.allocate(bytes).value(); }

  AsioLoop loop;
  ShmTransport transport;
  testing::HostWorld world;
};

TEST_CASE("host group over shared memory: every type and operation, in any memory") {
  for (const std::uint32_t size : {1, 2, 3, 5, 8}) {
    CAPTURE(size);
    Host host(size);
    int variant = 0;
    for (std::uint8_t dtype = 0; dtype < kDTypeCount; ++dtype) {
      for (std::uint8_t call = 0; call <= kOperationCount; ++call) {
        ExerciseTensor tensor;
        tensor.dtype = static_cast<DType>(dtype);
        if (call == kOperationCount) {
          tensor.kind = RoundKind::broadcast;
        } else {
          tensor.operation = static_cast<Operation>(call);
        }
        if (!is_defined(tensor.operation, tensor.dtype)) continue;
        if (tensor.kind == RoundKind::broadcast && dtype != 0) tensor.root = dtype % size;
        tensor.in_place = ++variant % 3 == 0;
        // Inline, and lent from regions or slabs; members may have different memory.
        tensor.elements = {3, 1000, 1, 7};
        tensor.allocate = [&host, variant](std::uint32_t member, std::size_t bytes) {
          return (variant + static_cast<int>(member)) % 2 == 0 ? host.region(bytes) : nullptr;
        };
        host.world.exercise.add(tensor);
      }
    }
    host.finish();
    host.world.exercise.again();
    host.finish();
  }
}

TEST_CASE("host group over shared memory: what does not fit into the links waits, and comes") {
  ShmOptions options;
  options.slab_bytes = 64 * 1024;
  for (const std::uint32_t size : {2, 4}) {
    Host host(size, options);
    for (int i = 0; i < 4; ++i) {
      ExerciseTensor tensor;
      tensor.elements = std::vector<std::uint32_t>(12, 6 * 1024);  // of 24 KiB: less than three fit
      tensor.in_place = i % 2 == 0;
      host.world.exercise.add(tensor);
    }
    host.finish();
  }
}

TEST_CASE("host group over shared memory: a member that is gone is told from outside") {
  Host host(3);
  ExerciseTensor tensor;
  tensor.elements = {50'000, 50'000, 50'000};
  tensor.allocate = [&](std::uint32_t, std::size_t bytes) { return host.region(bytes); };
  host.world.exercise.add(tensor);
  auto& exercise = host.world.exercise;
  const Error lost = make_error(ErrorCode::peer_lost, "rank 14 is gone");
  host.world.abort(2, lost);
  exercise.go();
  host.run([&] {
    return exercise.member(0).next == exercise.items() && exercise.member(1).next == exercise.items();
  });
  host.world.abort(0, lost);
  host.world.abort(1, lost);
  host.run([&] { return exercise.is_quiet(0) && exercise.is_quiet(1) && exercise.is_quiet(2); });
  for (const auto& [number, status] : exercise.member(0).ended)
    CHECK((status.ok() || status.error() == lost));
}

}  // namespace
}  // namespace bps::host_group_shm_test

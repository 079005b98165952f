// What goes wrong with GPUs and NCCL, at every call of a scenario in turn.
#include <catch2/catch.hpp>

#include "client/src/gpu/testing/cuda_scenario.h"

namespace bps::cuda_fault_test {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;
using testing::CudaHost;
using testing::CudaScenario;

const std::vector<std::string> kNothing;

CudaHost::Options options_for(std::uint32_t size) {
  CudaHost::Options options;
  options.cuda.longest = 30us;
  options.nccl.polls_in_progress = 1;
  if (size == 1) options.pinned_max = 0;
  return options;
}

TEST_CASE("cuda faults: without any, all goes well") {
  for (std::uint32_t size = 1; size <= 4; ++size) {
    CudaHost host(size, options_for(size));
    CudaScenario scenario(host);
    CHECK(scenario.run());
    CHECK(host.wrongs() == kNothing);
  }
}

TEST_CASE("cuda faults: any call of the driver fails, or loses the device, and everything ends") {
  for (std::uint32_t size = 1; size <= 3; ++size) {
    std::uint64_t calls = 0;
    {
      CudaHost host(size, options_for(size));
      REQUIRE(CudaScenario(host).run());
      calls = host.ranks[0].cuda->calls();
    }
    std::uint64_t failed = 0;
    for (std::uint64_t call = 0; call < calls; ++call) {
      for (const bool lost : {false, true}) {
        INFO("size " << size << ", call " << call << " of " << calls << (lost ? ", device lost" : ""));
        CudaHost host(size, options_for(size));
        CudaScenario scenario(host);
        host.ranks[0].cuda->fail_call(call, lost ? CudaCode::launch_failed : CudaCode::out_of_memory, lost);
        const bool good = scenario.run();
        CHECK(host.wrongs() == kNothing);
        if (good) continue;
        ++failed;
        const auto& member = scenario.members[0];
        if (member.broken) {
          CHECK_THAT(member.broken->message, Contains("cu") && Contains("on GPU 0 (Fake 0)"));
          if (member.error) CHECK(member.error->message == member.broken->message);
        }
      }
    }
    // Most calls matter; what only destroys or asks again may fail unnoticed.
    CHECK(failed > calls / 2);
  }
}

TEST_CASE("cuda faults: any call of NCCL fails, and everything ends at all ranks") {
  for (std::uint32_t size = 2; size <= 3; ++size) {
    std::uint64_t calls = 0;
    {
      CudaHost host(size, options_for(size));
      REQUIRE(CudaScenario(host).run());
      calls = host.ranks[1].nccl->calls();
    }
    std::uint64_t failed = 0;
    for (std::uint64_t call = 0; call < calls; ++call) {
      INFO("size " << size << ", call " << call << " of " << calls);
      CudaHost host(size, options_for(size));
      CudaScenario scenario(host);
      host.ranks[1].nccl->fail_call(call, NcclCode::system_error);
      const bool good = scenario.run();
      CHECK(host.wrongs() == kNothing);
      failed += good ? 0 : 1;
      if (!good && scenario.members[1].broken)
        CHECK_THAT(scenario.members[1].broken->message, Contains("nccl") && Contains("on GPU 0 (Fake 0)"));
    }
    // All but those of the end.
    CHECK(failed > calls / 2);
  }
}

struct Broken {
  explicit Broken(std::uint32_t size, CudaHost::Options options = {}) : host(size, options), scenario(host) {
    REQUIRE(scenario.open());
    REQUIRE(scenario.readable());
  }
  void end() {
    for (auto& member : scenario.members) {
      member.user.reset();
      member.own.reset();
    }
    host.leave();
    CHECK(host.wrongs() == kNothing);
  }
  CudaHost host;
  CudaScenario scenario;
};

TEST_CASE("cuda faults: an error names the call, the GPU and the tensor") {
  Broken b(1);
  b.host.ranks[0].cuda->fail_next(CudaCall::copy_to_host, 0, CudaCode::illegal_address, true);
  CHECK_FALSE(b.scenario.collectives());
  REQUIRE(b.scenario.members[0].broken);
  CHECK(b.scenario.members[0].broken->code == ErrorCode::os);
  CHECK(b.scenario.members[0].broken->message ==
        "cuMemcpyDtoHAsync on GPU 0 (Fake 0): fake CUDA error 700, during an operation on layer3.weight");
  // What comes later ends the same way, at once.
  ++b.scenario.members[0].calls;
  b.host.ranks[0].group->reduce(CudaScenario::collective(1), b.scenario.pieces(0, false));
  b.host.ranks[0].group->end_batch();
  CHECK(b.host.run_until([&] { return b.scenario.members[0].ended.count(1) == 1; }));
  CHECK(b.scenario.members[0].error->message == b.scenario.members[0].broken->message);
  b.end();
}

TEST_CASE("cuda faults: NCCL breaks by itself while the others are waited for") {
  Broken b(2);
  ++b.scenario.members[0].calls;
  b.host.ranks[0].group->reduce(CudaScenario::collective(0), b.scenario.pieces(0, false));
  b.host.ranks[0].group->end_batch();
  b.host.loop.run_for(10ms);
  CHECK(b.scenario.members[0].ended.empty());
  b.host.ranks[0].nccl->break_async(NcclCode::remote_error);
  CHECK_FALSE(b.scenario.reach([](const auto&) { return false; }));
  REQUIRE(b.scenario.members[0].broken);
  CHECK_THAT(b.scenario.members[0].broken->message, Contains("ncclReduceScatter on GPU 0"));
  b.end();
}

TEST_CASE("cuda faults: memory is touched until the device has ended, whoever aborts") {
  Broken b(1);
  auto& member = b.scenario.members[0];
  b.host.ranks[0].cuda->hang_next(0);
  ++member.calls;
  b.host.ranks[0].group->reduce(CudaScenario::collective(0), b.scenario.pieces(0, false));
  b.host.ranks[0].group->end_batch();
  b.host.loop.run_for(1ms);
  member.aborted = true;
  b.host.ranks[0].group->abort(make_error(ErrorCode::deadline, "the operation has taken too long"));
  b.host.loop.run_for(1s);
  CHECK(member.ended.empty());
  // What had not begun is another matter.
  ++member.calls;
  b.host.ranks[0].group->spread(CudaScenario::collective(1), b.scenario.pieces(0, true));
  b.host.ranks[0].group->end_batch();
  b.host.loop.run_for(1ms);
  CHECK(member.ended.count(1) == 1);
  b.host.ranks[0].cuda->lose_device(CudaCode::launch_failed);
  b.host.loop.run_for(1ms);
  CHECK(member.ended.count(0) == 1);
  CHECK(member.error->message == "the operation has taken too long");
  CHECK_FALSE(member.broken);
  b.end();
}

TEST_CASE("cuda faults: a GPU that does not come to rest in time is said to, and nothing is told after it") {
  Broken b(1);
  auto& member = b.scenario.members[0];
  FakeCuda& cuda = *b.host.ranks[0].cuda;
  cuda.hang_next(0);
  ++member.calls;
  b.host.ranks[0].group->reduce(CudaScenario::collective(0), b.scenario.pieces(0, false));
  b.host.ranks[0].group->end_batch();
  b.host.loop.run_for(100s);
  CHECK_FALSE(member.left_behind);  // it is only slow, as far as anybody knows
  member.aborted = true;
  b.host.ranks[0].group->abort(make_error(ErrorCode::deadline, "the operation has taken too long"));
  b.host.loop.run_for(CudaPatience{}.rest - 1ms);
  CHECK_FALSE(member.left_behind);
  b.host.loop.run_for(2ms);
  REQUIRE(member.left_behind);
  CHECK(member.left_behind->code == ErrorCode::os);
  CHECK(member.left_behind->message ==
        "GPU 0 (Fake 0) has not come to rest: its work does not end within 4 s; so it may still read and "
        "write the "
        "memory that it was given");
  cuda.lose_device(CudaCode::launch_failed);
  b.host.loop.run_for(1s);
  CHECK(member.ended.empty());
  b.end();
}

TEST_CASE("cuda faults: what a GPU never ends is left behind, with its context and what it writes to") {
  enum class Dropped { when_aborted, with_the_group, after_all };
  for (const Dropped dropped : {Dropped::when_aborted, Dropped::with_the_group, Dropped::after_all}) {
    INFO("memory dropped at " << static_cast<int>(dropped));
    Broken b(1);
    auto& member = b.scenario.members[0];
    FakeCuda& cuda = *b.host.ranks[0].cuda;
    cuda.hang_next(0);
    ++member.calls;
    b.host.ranks[0].group->reduce(CudaScenario::collective(0), b.scenario.pieces(0, false));
    b.host.ranks[0].group->end_batch();
    b.host.loop.run_for(1ms);
    const FakeCuda::Left left = cuda.left();
    if (dropped == Dropped::when_aborted) {
      member.aborted = true;
      b.host.ranks[0].group->abort(make_error(ErrorCode::deadline, "the operation has taken too long"));
      member.own.reset();
      const std::uint64_t before = cuda.count(CudaCall::query_stream);
      b.host.loop.run_for(10ms);
      // Three streams, as seldom as it is for nothing that is in a hurry.
      CHECK(cuda.count(CudaCall::query_stream) - before <= 3 * 52);
    }
    if (dropped == Dropped::with_the_group) {
      b.host.ranks[0].group.reset();
      member.own.reset();
    }
    b.host.leave();
    CHECK(b.host.loop.pending_timers() == 0);
    member.own.reset();
    b.host.loop.run_for(1s);
    CHECK(cuda.left().contexts == 1);
    CHECK(cuda.left().streams == left.streams);
    CHECK(cuda.left().registrations == left.registrations);
    CHECK(cuda.misuses().empty());
  }
}

TEST_CASE("cuda faults: a query that says something else gives no memory away") {
  Broken b(1);
  auto& member = b.scenario.members[0];
  b.host.ranks[0].cuda->hang_next(0);
  ++member.calls;
  b.host.ranks[0].group->reduce(CudaScenario::collective(0), b.scenario.pieces(0, false));
  b.host.ranks[0].group->end_batch();
  b.host.loop.run_for(1ms);
  for (std::uint64_t i = 0; i < 60; ++i)
    b.host.ranks[0].cuda->fail_next(CudaCall::query_stream, i, CudaCode::capture_unsupported);
  member.aborted = true;
  b.host.ranks[0].group->abort(make_error(ErrorCode::deadline, "the operation has taken too long"));
  b.host.loop.run_for(100ms);
  CHECK(member.ended.empty());
  b.host.ranks[0].cuda->lose_device(CudaCode::launch_failed);
  b.host.loop.run_for(1ms);
  CHECK(member.ended.count(0) == 1);
  b.end();
}

TEST_CASE("cuda faults: the context cannot be had any more") {
  Broken b(1);
  for (int i = 0; i < 2; ++i)
    b.host.ranks[0].cuda->fail_next(CudaCall::push_context, 0, CudaCode::unknown);
  b.host.ranks[0].cuda->fail_next(CudaCall::push_context, 1, CudaCode::unknown);
  CHECK_FALSE(b.scenario.collectives());
  REQUIRE(b.scenario.members[0].broken);
  CHECK_THAT(b.scenario.members[0].broken->message, Contains("cuCtxPushCurrent"));
  b.end();
}

TEST_CASE("cuda faults: ranks whose orders differ are seen to wait for ever, and end by abort") {
  Broken b(2);
  for (std::uint32_t i = 0; i < 2; ++i) {
    b.scenario.members[i].calls = 1;
    auto pieces = b.scenario.pieces(i, false);
    if (i == 1) pieces.erase(pieces.begin());
    b.host.ranks[i].group->reduce(CudaScenario::collective(0), pieces);
    b.host.ranks[i].group->end_batch();
  }
  b.host.loop.run_for(1s);
  const auto wrong = b.host.world.differences();
  CHECK(wrong.size() == 1);
  CHECK(b.scenario.members[0].ended.empty());
  for (std::uint32_t i = 0; i < 2; ++i) {
    b.scenario.members[i].aborted = true;
    b.host.ranks[i].group->abort(make_error(ErrorCode::peer_lost, "gone"));
  }
  b.host.loop.run_for(1s);
  CHECK(b.scenario.members[0].ended.size() == 1);
  for (auto& member : b.scenario.members) {
    member.user.reset();
    member.own.reset();
  }
  b.host.leave();
  CHECK(b.host.wrongs() == wrong);
}

}  // namespace
}  // namespace bps::cuda_fault_test

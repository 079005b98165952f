// A client's end, when the driver or NCCL does not let go.
#include "client/src/gpu/driver/cuda_thread.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "client/src/gpu/cuda_worker.h"
#include "client/src/gpu/nccl/testing/fake_nccl.h"
#include "client/src/gpu/testing/fake_cuda.h"
#include "proto/base/testing/run_on.h"

namespace bps {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;

// Stays as long as the process: a thread that is left behind may go on in it.
struct Gpu {
  static Gpu& forever() {
    static std::vector<std::unique_ptr<Gpu>> all;
    return *all.emplace_back(std::make_unique<Gpu>());
  }
  std::unique_ptr<LoopThread> clock = std::move(LoopThread::start("clock")).value();
  FakeNcclWorld world;
  std::shared_ptr<FakeCuda> cuda = std::make_shared<FakeCuda>(clock->loop());
  std::shared_ptr<FakeNccl> nccl = std::make_shared<FakeNccl>(world, *cuda);
};

struct Owner final : LocalGroup::Owner {
  void on_summed(std::uint64_t, std::size_t) override {}
  void on_ended(std::uint64_t, const Status&) override {}
  void on_broken(const Error&) override {}
  void send(std::uint32_t, const Message&, Payload, std::uint64_t) override {}
};

struct Ending {
  Ending() {
    CudaGroup::Options options;
    options.size = 2;
    options.patience.slow_looks = options.patience.stuck_looks = 3600;
    options.lease = thread->lease();
    on_client([&] {
      group = std::make_unique<CudaGroup>(client->loop(), thread->loop(),
                                          CudaDevice::open(gpu.cuda, 0).value(), gpu.nccl, options, owner);
    });
  }
  void on_client(const std::function<void()>& act) { testing::run_on(client->loop(), act); }
  // `set_up` and the end of it are waited for on this thread; the group is one of two, and stays alone.
  void begin() {
    const auto setup = std::make_shared<Completion<std::vector<std::byte>>>();
    on_client([&] {
      group->make_setup([setup](const Result<std::vector<std::byte>>& made) { setup->set(made.value()); });
    });
    REQUIRE(setup->wait_until(client->loop().now() + 30s));
    on_client(
        [&] { group->begin(setup->value(), [begun = begun](const Status& status) { begun->set(status); }); });
    const TimePoint deadline = client->loop().now() + 30s;
    while (gpu.nccl->count(NcclCall::init_rank) == 0 && client->loop().now() < deadline)
      on_client([] {});
    REQUIRE(gpu.nccl->count(NcclCall::init_rank) == 1);
  }

  Gpu& gpu = Gpu::forever();
  std::unique_ptr<LoopThread> client = std::move(LoopThread::start("client")).value();
  std::unique_ptr<CudaThread> thread = std::move(CudaThread::start()).value();
  Owner owner;
  const std::shared_ptr<Completion<Status>> begun = std::make_shared<Completion<Status>>();
  std::unique_ptr<CudaGroup> group;
};

TEST_CASE("cuda thread: it ends when all that was to be done has been") {
  Ending e;
  e.begin();
  e.on_client([&] { e.group.reset(); });
  CHECK(e.thread->stop(30s).ok());
  CHECK(e.thread->stop(30s).ok());
  CHECK(e.gpu.nccl->left() == 0);
  CHECK(e.gpu.cuda->left() == FakeCuda::Left());
  CHECK(e.gpu.cuda->misuses().empty());
}

TEST_CASE("cuda thread: NCCL does not end, so the client ends without it, and is told so") {
  Ending e;
  e.begin();
  e.gpu.nccl->block(NcclCall::abort);
  e.on_client([&] { e.group.reset(); });
  REQUIRE(e.gpu.nccl->wait_for_blocked(e.client->loop().now() + 30s));
  const Status status = e.thread->stop(50ms);
  REQUIRE_FALSE(status.ok());
  CHECK_THAT(status.error().message, Contains("within 0.05 s") && Contains("ncclCommAbort does not return"));
  CHECK(e.gpu.nccl->left() == 1);
}

TEST_CASE("cuda thread: while a call takes long, the client's loop goes on, and hears of what has ended") {
  Ending e;
  e.begin();
  e.gpu.cuda->block(CudaCall::register_host);
  e.on_client([&] { CHECK(e.group->allocate(1 << 20).ok()); });
  for (int i = 0; i < 10; ++i)
    e.on_client([] {});
  e.gpu.cuda->unblock();
  // The error comes before the call that does not return.
  e.gpu.nccl->block(NcclCall::abort);
  e.on_client([&] { e.group->abort(make_error(ErrorCode::peer_lost, "rank 1 is gone")); });
  REQUIRE(e.begun->wait_until(e.client->loop().now() + 30s));
  REQUIRE_FALSE(e.begun->value().ok());
  CHECK(e.begun->value().error().message == "rank 1 is gone");
  e.on_client([&] { e.group.reset(); });
  CHECK_FALSE(e.thread->stop(50ms).ok());
}

TEST_CASE("cuda thread: who closes calls no driver that does not return") {
  Gpu& gpu = Gpu::forever();
  const auto device = CudaDevice::open(gpu.cuda, 0).value();
  const auto client = std::move(LoopThread::start("client")).value();
  void* memory = nullptr;
  {
    const CudaDevice::Current current(*device);
    REQUIRE(gpu.cuda->allocate(memory, 4096) == CudaCode::success);
  }
  Owner owner;
  std::uint64_t calls = 0;
  std::shared_ptr<Region> region;
  {
    CudaWorker worker({}, {[&] { return Result<std::shared_ptr<CudaApi>>(gpu.cuda); }, {}, {.stop = 50ms}});
    REQUIRE(worker.describe(std::span(static_cast<std::byte*>(memory), 4096), 0, nullptr).ok());
    testing::run_on(client->loop(), [&] {
      auto group = worker.make_group(client->loop(), 1, 0, owner);
      gpu.cuda->block(CudaCall::register_host);
      region = group->allocate(1 << 20).value();
      REQUIRE(gpu.cuda->wait_for_blocked(client->loop().now() + 30s));
    });
    const Status status = worker.stop();
    REQUIRE_FALSE(status.ok());
    calls = gpu.cuda->calls();
  }
  client->stop();
  CHECK(gpu.cuda->calls() == calls);
  CHECK(gpu.cuda->count(CudaCall::destroy_event) == 0);  // nor within stop()
}

}  // namespace
}  // namespace bps

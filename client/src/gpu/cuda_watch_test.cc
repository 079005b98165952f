// The client's loop sees that the other thread is in a call that does not return.
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "client/src/gpu/cuda_group.h"
#include "client/src/gpu/driver/cuda_buffers.h"
#include "client/src/gpu/testing/fake_cuda.h"
#include "proto/base/loop/virtual_loop.h"

namespace bps::cuda_watch_test {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;

// A group of one whose CUDA thread goes on when the test says so.
struct Watched final : LocalGroup::Owner {
  Watched() {
    CudaGroup::Options options;
    options.lease = lease;
    options.log =
        Logger("cuda", LogTarget::to_callback([this](LogLevel, auto, auto line) { lines.emplace_back(line); },
                                              LogLevel::warn));
    group = std::make_unique<CudaGroup>(client, thread, device, nullptr, options, *this);
    bool is_begun = false;
    group->begin({}, [&](const Status& status) { is_begun = status.ok(); });
    REQUIRE(go_on([&] { return is_begun; }));
  }
  ~Watched() {
    group.reset();
    go_on([] { return false; });
  }
  bool go_on(const std::function<bool()>& done) {
    for (int i = 0; i < 2000 && !done(); ++i) {
      client.run_for(50us);
      thread.run_for(50us);
      gpu.run_for(50us);
      (void)cuda->is_idle();
    }
    return done();
  }
  void ask() {
    const auto buffer = CudaBuffers(device).describe(memory, 64, nullptr);
    group->when_readable(buffer.value(), [this](const Status& status) { told = status; });
  }
  // The thread has come to this call.
  void enter(const char* name) {
    lease->enter(name);
    client.run_for(1ms);
  }
  void enter_nccl() {
    lease->enter_nccl("a collective of NCCL");
    client.run_for(1ms);
  }

  std::byte* allocate() {
    const CudaDevice::Current current(*device);
    void* made = nullptr;
    REQUIRE(cuda->allocate(made, 64) == CudaCode::success);
    return static_cast<std::byte*>(made);
  }

  void on_summed(std::uint64_t, std::size_t) override {}
  void on_ended(std::uint64_t, const Status&) override {}
  void on_broken(const Error& error) override {
    CHECK_FALSE(broken);
    broken = error;
  }
  void on_left_behind(const Error& why) override { left_behind = why; }
  void send(std::uint32_t, const Message&, Payload, std::uint64_t) override {}

  VirtualLoop client, thread, gpu;
  std::shared_ptr<FakeCuda> cuda = std::make_shared<FakeCuda>(gpu);
  std::shared_ptr<CudaDevice> device = CudaDevice::open(cuda, 0).value();
  std::shared_ptr<CudaLease> lease = std::make_shared<CudaLease>();
  std::byte* memory = allocate();
  std::vector<std::string> lines;
  std::unique_ptr<CudaGroup> group;
  std::optional<Status> told;
  std::optional<Error> broken, left_behind;
};

TEST_CASE("cuda watch: a call of NCCL that does not return is named, then breaks the group") {
  const ExpectLog slow("has not returned for 5 s");
  Watched w;
  w.ask();
  w.enter_nccl();
  w.client.run_for(5s);
  CHECK(w.lines.empty());
  w.client.run_for(1s);
  REQUIRE(w.lines.size() == 1);
  CHECK_THAT(w.lines[0], Contains("a collective of NCCL on GPU 0 (Fake 0) has not returned for 5 s") &&
                             Contains("cudaFree"));
  CHECK(w.group->waits_for() == "a collective of NCCL on GPU 0 (Fake 0) has not returned for 5 s");
  w.client.run_for(4s);
  CHECK_FALSE(w.broken);
  w.client.run_for(1s);
  REQUIRE(w.broken);
  CHECK(w.broken->code == ErrorCode::os);
  CHECK_THAT(w.broken->message, Contains("a collective of NCCL on GPU 0 (Fake 0) has not returned for 10 s"));
  // The owner aborts, of which that thread hears nothing.
  w.group->abort(*w.broken);
  w.client.run_for(CudaPatience{}.rest + 1ms);
  REQUIRE(w.left_behind);
  CHECK_THAT(w.left_behind->message, Contains("a collective of NCCL does not return within 4 s"));
  CHECK(w.lines.size() == 1);
  w.lease->leave();
  CHECK_FALSE(w.go_on([&] { return w.told.has_value(); }));
}

TEST_CASE("cuda watch: a call of the driver that does not return is named, and breaks nothing") {
  const ExpectLog slow("has not returned for 5 s");
  Watched w;
  w.ask();
  w.enter("cuMemHostRegister or cuMemHostUnregister");
  w.client.run_for(30s);
  REQUIRE(w.lines.size() == 1);
  CHECK_THAT(w.lines[0], Contains("cuMemHostRegister or cuMemHostUnregister on GPU 0 (Fake 0)") &&
                             Contains("what the program has queued on that GPU"));
  CHECK_FALSE(w.broken);
  w.lease->leave();
  CHECK(w.go_on([&] { return w.told.has_value(); }));
}

TEST_CASE("cuda watch: what ends after the group was broken so is not told to have gone well") {
  const ExpectLog slow("has not returned for 5 s");
  Watched w;
  w.ask();
  w.enter_nccl();
  w.client.run_for(11s);
  REQUIRE(w.broken);
  w.lease->leave();
  REQUIRE(w.go_on([&] { return w.told.has_value(); }));
  CHECK_FALSE(w.told->ok());
}

TEST_CASE("cuda watch: calls that take their time, one after another, are none that does not return") {
  Watched w;
  const bool are_within_one = GENERATE(true, false);
  w.ask();
  if (are_within_one) w.enter("a turn");
  for (int i = 0; i < 20; ++i) {
    w.enter("a call");
    w.client.run_for(3s);
    w.lease->leave();
  }
  if (are_within_one) w.lease->leave();
  CHECK(w.lines.empty());
  CHECK_FALSE(w.broken);
}

TEST_CASE("cuda watch: whatever the thread asks the driver, it says that it is within") {
  Watched w;
  std::set<std::string> seen;
  bool is_over = false;
  w.cuda->enqueue(nullptr, {.may_start = [&] {
                    // Asked by whoever calls the driver.
                    if (const char* const name = w.lease->call().name) seen.insert(name);
                    return is_over;
                  }});
  w.ask();
  CHECK_FALSE(w.go_on([&] { return w.told.has_value(); }));
  CHECK(seen == std::set<std::string>{"a call of NVIDIA's driver"});
  is_over = true;
  CHECK(w.go_on([&] { return w.told.has_value(); }));
  CHECK(w.lease->call().name == nullptr);
}

TEST_CASE("cuda watch: nobody looks while nothing is open") {
  Watched w;
  w.ask();
  REQUIRE(w.go_on([&] { return w.told.has_value(); }));
  w.client.run_for(2s);
  CHECK(w.client.pending_timers() == 0);
}

}  // namespace
}  // namespace bps::cuda_watch_test

#include "client/src/gpu/testing/fake_cuda.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <set>
#include <vector>

#include "proto/base/loop/virtual_loop.h"

namespace bps {
namespace {

using namespace std::chrono_literals;

struct Gpu {
  explicit Gpu(FakeCuda::Options options = {}) : cuda(loop, options), host(4096) {
    REQUIRE(cuda.retain_context(context, 0) == CudaCode::success);
    REQUIRE(cuda.push_context(context) == CudaCode::success);
    REQUIRE(cuda.create_stream(stream, 0) == CudaCode::success);
    REQUIRE(cuda.create_stream(other, 0) == CudaCode::success);
    REQUIRE(cuda.create_event(event) == CudaCode::success);
    REQUIRE(cuda.allocate(memory, host.size()) == CudaCode::success);
    REQUIRE(cuda.register_host(host.data(), host.size()) == CudaCode::success);
  }
  void destroy() {
    CHECK(cuda.unregister_host(host.data()) == CudaCode::success);
    CHECK(cuda.free(memory) == CudaCode::success);
    CHECK(cuda.destroy_event(event) == CudaCode::success);
    CHECK(cuda.destroy_stream(other) == CudaCode::success);
    CHECK(cuda.destroy_stream(stream) == CudaCode::success);
    CHECK(cuda.pop_context() == CudaCode::success);
    CHECK(cuda.release_context(0) == CudaCode::success);
  }
  bool wait(CudaStream which) {
    for (int i = 0; i < 100 && cuda.query_stream(which) == CudaCode::not_ready; ++i)
      loop.run_for(10us);
    return cuda.query_stream(which) == CudaCode::success;
  }

  VirtualLoop loop;
  FakeCuda cuda;
  std::vector<std::byte> host;
  CudaContext context = nullptr;
  CudaStream stream = nullptr, other = nullptr;
  CudaEvent event = nullptr;
  void* memory = nullptr;
};

TEST_CASE("fake cuda: a thread without a context has no device") {
  Gpu g;
  int device = -1;
  CHECK(g.cuda.current_device(device) == CudaCode::success);
  CHECK(device == 0);
  CHECK(g.cuda.pop_context() == CudaCode::success);
  CHECK(g.cuda.current_device(device) == CudaCode::invalid_context);
  CHECK(g.cuda.push_context(g.context) == CudaCode::success);
  g.destroy();
  CHECK(g.cuda.misuses().empty());
}

TEST_CASE("fake cuda: what is copied arrives later, in the order of the stream") {
  Gpu g;
  std::memset(g.host.data(), 7, g.host.size());
  REQUIRE(g.cuda.copy_to_device(g.memory, g.host.data(), g.host.size(), g.stream) == CudaCode::success);
  REQUIRE(g.cuda.record_event(g.event, g.stream) == CudaCode::success);
  CHECK(g.cuda.query_event(g.event) == CudaCode::not_ready);
  REQUIRE(g.cuda.wait_event(g.other, g.event) == CudaCode::success);
  REQUIRE(g.cuda.copy_to_host(g.host.data(), g.memory, 100, g.other) == CudaCode::success);
  std::memset(g.host.data() + 200, 8, 100);  // too early: it is what arrives
  REQUIRE(g.wait(g.other));
  CHECK(g.cuda.query_event(g.event) == CudaCode::success);
  CHECK(static_cast<std::byte*>(g.memory)[0] == std::byte{7});
  CHECK(static_cast<std::byte*>(g.memory)[200] == std::byte{8});
  CHECK(g.cuda.count(CudaCall::copy_to_host) == 1);
  g.destroy();
  CHECK(g.cuda.left() == FakeCuda::Left{});
  CHECK(g.cuda.misuses().empty());
}

TEST_CASE("fake cuda: what is done wrong is written down") {
  Gpu g;
  std::vector<std::byte> ordinary(64);
  REQUIRE(g.cuda.copy_to_host(ordinary.data(), g.memory, 64, g.stream) == CudaCode::success);
  REQUIRE(g.cuda.copy_to_host(g.host.data(), g.memory, g.host.size() + 1, g.stream) == CudaCode::success);
  const std::size_t before = g.cuda.misuses().size();
  CHECK(before == 3);
  CHECK(g.cuda.free(g.memory) == CudaCode::success);
  CHECK(g.cuda.unregister_host(g.host.data()) == CudaCode::success);
  CHECK(g.cuda.destroy_stream(g.stream) == CudaCode::success);
  CHECK(g.cuda.pop_context() == CudaCode::success);
  CHECK(g.cuda.query_event(g.event) == CudaCode::invalid_context);
  CHECK(g.cuda.misuses().size() == before + 4);
}

TEST_CASE("fake cuda: any call fails on demand, and a device is lost") {
  Gpu g;
  g.cuda.fail_next(CudaCall::copy_to_host, 1, CudaCode::illegal_address);
  CHECK(g.cuda.copy_to_host(g.host.data(), g.memory, 1, g.stream) == CudaCode::success);
  CHECK(g.cuda.copy_to_host(g.host.data(), g.memory, 1, g.stream) == CudaCode::illegal_address);
  CHECK(g.cuda.copy_to_host(g.host.data(), g.memory, 1, g.stream) == CudaCode::success);
  g.cuda.fail_call(g.cuda.calls() + 1, CudaCode::launch_failed, true);
  CHECK(g.cuda.query_stream(g.stream) == CudaCode::not_ready);
  CHECK(g.cuda.query_stream(g.other) == CudaCode::launch_failed);
  CHECK(g.cuda.query_stream(g.stream) == CudaCode::launch_failed);
  CHECK(g.cuda.is_idle());
  CHECK(g.cuda.free(g.memory) == CudaCode::launch_failed);
  CHECK(g.cuda.left().allocations == 0);
}

TEST_CASE("fake cuda: memory is limited, and an operation that hangs stops its stream") {
  Gpu g({.memory = 8192});
  void* more = nullptr;
  CHECK(g.cuda.allocate(more, 4097) == CudaCode::out_of_memory);
  g.cuda.hang_next(1);
  REQUIRE(g.cuda.record_event(g.event, g.stream) == CudaCode::success);
  REQUIRE(g.cuda.copy_to_host(g.host.data(), g.memory, 1, g.stream) == CudaCode::success);
  g.loop.run_for(1s);
  CHECK(g.cuda.query_event(g.event) == CudaCode::success);
  CHECK(g.cuda.query_stream(g.stream) == CudaCode::not_ready);
}

TEST_CASE("fake cuda: the handle of a stream is used again, its id is not") {
  Gpu g;
  std::uint64_t first = 0, second = 0, none = 0;
  CHECK(g.cuda.stream_id(none, nullptr) == CudaCode::success);
  CHECK(g.cuda.stream_id(first, g.other) == CudaCode::success);
  CHECK(g.cuda.destroy_stream(g.other) == CudaCode::success);
  CudaStream again = nullptr;
  CHECK(g.cuda.create_stream(again, 0) == CudaCode::success);
  CHECK(again == g.other);
  CHECK(g.cuda.stream_id(second, again) == CudaCode::success);
  CHECK(std::set<std::uint64_t>{none, first, second}.size() == 3);
  g.cuda.begin_capture(again);
  CHECK(g.cuda.stream_id(second, again) == CudaCode::capture_unsupported);
}

constexpr const char* kCopyKernel = ".visible .entry copy(.param .u64 from, .param .u64 to) { ret; }";

struct Loaded {
  explicit Loaded(Gpu& gpu) : g(gpu), from(reinterpret_cast<std::uint64_t>(g.memory)), to(from + 60) {
    REQUIRE(g.cuda.load_module(module, kCopyKernel) == CudaCode::success);
    REQUIRE(g.cuda.find_kernel(kernel, module, "copy") == CudaCode::success);
    std::memset(g.memory, 7, 4);
  }
  CudaCode launch() { return g.cuda.launch(kernel, {}, arguments.data(), g.stream); }

  Gpu& g;
  std::uint64_t from, to;
  std::array<void*, 2> arguments = {&from, &to};
  CudaModule module = nullptr;
  CudaKernel kernel = nullptr;
};

TEST_CASE("fake cuda: a kernel is played, in the turn of its stream") {
  Gpu g;
  std::uint32_t launched = 0;
  g.cuda.play("copy", [&](const CudaGrid& grid, void** arguments) -> std::optional<FakeCuda::Work> {
    ++launched;
    auto* const to = *static_cast<std::byte**>(arguments[1]);
    if (grid.threads_x != 1) return std::nullopt;
    return FakeCuda::Work{.may_start = {}, .finish = [to] { *to = std::byte{9}; }, .memory = {{to, 1}}};
  });
  Loaded k(g);
  CudaKernel none = nullptr;
  CHECK(g.cuda.find_kernel(none, k.module, "other") == CudaCode::not_found);
  auto* const written = static_cast<std::byte*>(g.memory) + 60;
  *written = std::byte{1};
  REQUIRE(k.launch() == CudaCode::success);
  CHECK(launched == 1);
  CHECK(*written == std::byte{1});
  REQUIRE(g.wait(g.stream));
  CHECK(*written == std::byte{9});
  CHECK(g.cuda.left().modules == 1);
  CHECK(g.cuda.launch(k.kernel, {.threads_x = 2}, k.arguments.data(), g.stream) == CudaCode::invalid_value);
  CHECK(g.cuda.unload_module(k.module) == CudaCode::success);
  g.destroy();
  CHECK(g.cuda.left() == FakeCuda::Left{});
  CHECK(g.cuda.misuses().empty());
}

TEST_CASE("fake cuda: modules and kernels have rules, too") {
  Gpu g;
  g.cuda.play("copy", [](const CudaGrid&, void**) {
    return FakeCuda::Work{.may_start = [] { return false; }, .finish = [] {}, .memory = {}};
  });
  Loaded k(g);
  CudaModule wrong = nullptr;
  CHECK(g.cuda.load_module(wrong, "no kernel") == CudaCode::invalid_text);
  CHECK(g.cuda.misuses() ==
        std::vector<std::string>{"cuModuleLoadData of a text without a kernel that is played"});
  CHECK(k.launch() == CudaCode::success);
  CHECK(g.cuda.unload_module(k.module) == CudaCode::success);
  CHECK(g.cuda.misuses().back() == "a module is unloaded while its kernels run");
  CHECK(k.launch() == CudaCode::invalid_value);
  CHECK(g.cuda.misuses().size() == 3);
}

}  // namespace
}  // namespace bps

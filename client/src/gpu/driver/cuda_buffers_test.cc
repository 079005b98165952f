#include "client/src/gpu/driver/cuda_buffers.h"

#include <catch2/catch.hpp>
#include <optional>

#include "client/src/gpu/testing/fake_cuda.h"
#include "proto/base/loop/virtual_loop.h"

namespace bps {
namespace {

constexpr std::size_t kBufferBytes = 64 << 10;

struct Given {
  explicit Given(int devices = 1) {
    FakeCuda::Options options;
    options.devices = devices;
    cuda = std::make_shared<FakeCuda>(loop, options);
    device = CudaDevice::open(cuda, 0).value();
    buffers.emplace(device);
    memory = allocate(*device);
  }
  ~Given() {
    release(*device, memory);
    buffers.reset();
    device.reset();
    CHECK(cuda->left() == FakeCuda::Left{});
    CHECK(cuda->misuses().empty());
  }
  std::byte* allocate(const CudaDevice& of) const {
    const CudaDevice::Current current(of);
    void* made = nullptr;
    REQUIRE(cuda->allocate(made, kBufferBytes) == CudaCode::success);
    return static_cast<std::byte*>(made);
  }
  void release(const CudaDevice& of, std::byte* what) const {
    const CudaDevice::Current current(of);
    CHECK(cuda->free(what) == CudaCode::success);
  }
  // What is wrong with it; empty: nothing.
  std::string refusal(void* start, std::size_t bytes) {
    const auto buffer = buffers->describe(start, bytes, nullptr);
    if (buffer) {
      CHECK(buffer->bytes.data() == start);
      CHECK(buffer->bytes.size() == bytes);
      return {};
    }
    CHECK(buffer.error().code == ErrorCode::invalid_argument);
    return buffer.error().message;
  }
  VirtualLoop loop;
  std::shared_ptr<FakeCuda> cuda;
  std::shared_ptr<CudaDevice> device;
  std::optional<CudaBuffers> buffers;
  std::byte* memory = nullptr;
};

constexpr const char* kBeyond =
    "the buffer of 65536 bytes ends beyond the memory that was allocated on GPU 0 (Fake 0)";

TEST_CASE("cuda buffers: memory is taken whole, and in part, and not beyond its end") {
  Given g;
  CHECK(g.refusal(g.memory, kBufferBytes).empty());
  CHECK(g.refusal(g.memory + kBufferBytes - 4, 4).empty());
  CHECK(g.refusal(g.memory + 4, kBufferBytes) == kBeyond);
  std::byte host{};
  CHECK(g.refusal(&host, 1) == "the buffer is said to be a GPU's, and is not in any GPU's memory");
}

TEST_CASE("cuda buffers: a range of several mappings is one buffer, up to its end") {
  Given g;
  g.cuda->tell_size(g.memory, 4096);
  CHECK(g.refusal(g.memory, kBufferBytes).empty());
  CHECK(g.refusal(g.memory + 100, 4096).empty());
  CHECK(g.refusal(g.memory + 4, kBufferBytes) == kBeyond);
}

TEST_CASE("cuda buffers: allocations side by side are not one buffer") {
  Given g;
  g.cuda->tell_size(g.memory, 4096, FakeCuda::Pieces::allocations);
  CHECK(g.refusal(g.memory, 4096).empty());
  CHECK(g.refusal(g.memory + 4096, 4096).empty());
  CHECK(g.refusal(g.memory + 4, 4092).empty());
  for (const auto& [offset, bytes] : {std::pair(0, 4097), std::pair(4, 4096), std::pair(4096, 8192)}) {
    INFO("offset " << offset << ", " << bytes << " bytes");
    CHECK_THAT(g.refusal(g.memory + offset, static_cast<std::size_t>(bytes)),
               Catch::Contains("ends beyond the memory that was allocated on GPU 0"));
  }
}

TEST_CASE("cuda buffers: the driver is asked once about an allocation") {
  Given g;
  CHECK(g.refusal(g.memory + 4, kBufferBytes - 8).empty());
  CHECK(g.refusal(g.memory, kBufferBytes).empty());
  CHECK(g.cuda->count(CudaCall::describe_pointer) == 2);
}

TEST_CASE("cuda buffers: what is reserved is not there yet") {
  Given g;
  g.cuda->tell_size(g.memory, 2 * kBufferBytes);
  CHECK(g.refusal(g.memory, kBufferBytes).empty());
  CHECK(g.refusal(g.memory + 4, kBufferBytes) == kBeyond);
}

TEST_CASE("cuda buffers: memory of another GPU is refused") {
  Given g(2);
  const auto second = CudaDevice::open(g.cuda, 1).value();
  std::byte* const theirs = g.allocate(*second);
  CHECK(g.refusal(theirs, kBufferBytes) ==
        "the buffer is in the memory of GPU 1, and this worker has GPU 0 (Fake 0)");
  g.release(*second, theirs);
}

}  // namespace
}  // namespace bps

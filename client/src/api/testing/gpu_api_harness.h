// For tests of GPU memory through the C API: clients on virtual GPUs, with real servers, on threads as in
// life.
#pragma once

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/src/api/c_client.h"
#include "client/src/api/embedded_cluster.h"
#include "client/src/api/testing/c_api_refusal.h"
#include "client/src/gpu/nccl/testing/fake_nccl.h"
#include "client/src/gpu/testing/fake_cuda.h"
#include "client/src/runtime/settings.h"

namespace bps::testing {

inline LoopThread& clock_thread() {
  static const std::unique_ptr<LoopThread> thread = std::move(LoopThread::start("clock")).value();
  return *thread;
}

// A worker with a GPU, and what its program does with that in this thread.
class GpuWorker {
 public:
  explicit GpuWorker(FakeCuda::Options cuda_options = {}, FakeNcclWorld* world = nullptr)
      : cuda(std::make_shared<FakeCuda>(clock_thread().loop(), cuda_options)) {
    if (world != nullptr) nccl = std::make_shared<FakeNccl>(*world, *cuda);
    const int device = cuda_options.devices - 1;
    CudaContext context = nullptr;
    CHECK(cuda->retain_context(context, device) == CudaCode::success);
    CHECK(cuda->push_context(context) == CudaCode::success);
    CHECK(cuda->create_stream(stream, 0) == CudaCode::success);
    CHECK(cuda->register_host(read_.data(), read_.size()) == CudaCode::success);
    device_ = device;
  }
  // All that the library had has been given back, and it has kept the rules of the driver.
  ~GpuWorker() {
    close();
    const CudaCode lost = cuda->query_stream(stream);
    for (void* memory : memory_)
      (void)cuda->free(memory);
    (void)cuda->unregister_host(read_.data());
    (void)cuda->destroy_stream(stream);
    (void)cuda->pop_context();
    (void)cuda->release_context(device_);
    if (lost == CudaCode::success && gives_all_back) CHECK((cuda->left() == FakeCuda::Left{}));
    CHECK(cuda->misuses() == std::vector<std::string>{});
    if (nccl != nullptr) {
      CHECK(nccl->left() == 0);
      CHECK(nccl->misuses() == std::vector<std::string>{});
    }
  }
  GpuWorker(const GpuWorker&) = delete;
  GpuWorker& operator=(const GpuWorker&) = delete;

  Status open(GivenSettings given = {}, const Environment& environment = {}) {
    given.emplace("scheduler", "embedded:");
    given.emplace("job", "gpus");
    auto settings = read_settings(given, environment);
    if (!settings) return settings.error();
    CudaWorker::Drivers drivers;
    drivers.cuda = [this]() -> Result<std::shared_ptr<CudaApi>> {
      if (no_driver) return *no_driver;
      return std::shared_ptr<CudaApi>(cuda);
    };
    drivers.nccl = [this]() -> Result<std::shared_ptr<NcclApi>> {
      if (nccl == nullptr) return make_error(ErrorCode::configuration, "no NCCL: libnccl.so.2: not found");
      return std::shared_ptr<NcclApi>(nccl);
    };
    drivers.patience = patience;
    auto opened = Client::open(
        *settings, Logger("test", LogTarget::to_callback([](auto...) {}, LogLevel::off)), std::move(drivers));
    if (!opened) return opened.error();
    client = new bps_client{std::move(opened).value()};
    return {};
  }
  void close() {
    if (client != nullptr) (void)bps_close(client, 30'000, nullptr);
    bps_free(std::exchange(client, nullptr));
  }

  bps_tensor declare(const char* name, std::uint64_t count, bps_dtype dtype = BPS_F32,
                     bps_mode mode = BPS_MODE_SYNC) const {
    bps_tensor_spec spec = BPS_TENSOR_SPEC_INIT;
    spec.name = name;
    spec.dtype = dtype;
    spec.count = count;
    spec.mode = mode;
    bps_tensor tensor = 0;
    Refusal why;
    const bps_status status = bps_declare(client, &spec, 1, &tensor, 30'000, why);
    INFO(why.message());
    CHECK(status == BPS_OK);
    return tensor;
  }
  // Memory of the GPU, which here can be looked at.
  template <class T>
  T* on_device(const std::vector<T>& values) {
    void* memory = nullptr;
    CHECK(cuda->allocate(memory, values.size() * sizeof(T)) == CudaCode::success);
    std::memcpy(memory, values.data(), values.size() * sizeof(T));
    memory_.push_back(memory);
    return static_cast<T*>(memory);
  }
  template <class T>
  bps_buffer buffer(T* memory, std::size_t count) const {
    return {sizeof(bps_buffer), memory, count * sizeof(T), BPS_MEMORY_CUDA, device_, stream};
  }
  static bps_buffer on_host(std::vector<float>& memory) {
    return {sizeof(bps_buffer), memory.data(), memory.size() * 4, BPS_MEMORY_HOST, 0, nullptr};
  }
  bps_handle* push_pull(bps_tensor tensor, bps_buffer in, bps_buffer out,
                        bps_reduce_op operation = BPS_SUM) const {
    bps_handle* handle = nullptr;
    Refusal why;
    const bps_status status = bps_push_pull(client, tensor, &in, &out, operation, &handle, why);
    INFO(why.message());
    CHECK(status == BPS_OK);
    return handle;
  }
  std::string refusal(bps_tensor tensor, bps_buffer in, const bps_buffer* out, bps_status expected) const {
    bps_handle* handle = nullptr;
    Refusal why;
    CHECK(bps_push_pull(client, tensor, &in, out, BPS_SUM, &handle, why) == expected);
    CHECK(handle == nullptr);
    return why.message();
  }
  // Its end, and what it says.
  static std::string wait(bps_handle* handle, std::int64_t timeout_ms = 30'000) {
    Refusal why;
    (void)bps_wait(handle, timeout_ms, why);
    bps_handle_free(handle);
    return why.message();
  }
  // The stream reads what is there when it comes to it.
  void read_later(const float* memory) {
    CHECK(cuda->copy_to_host(read_.data(), memory, read_.size(), stream) == CudaCode::success);
  }
  float read() const {
    float value = 0;
    std::memcpy(&value, read_.data(), sizeof value);
    return value;
  }
  // An operation whose input is not ready before this is called, and the stream that it waits for.
  std::function<void()> hold(CudaStream held) {
    const auto may_go = std::make_shared<std::atomic<bool>>(false);
    cuda->enqueue(held, {[may_go] { return may_go->load(); }, [] {}, {}});
    return [may_go] { may_go->store(true); };
  }
  bool stream_is_over() const {
    const TimePoint by = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    CudaCode code = CudaCode::not_ready;
    while (code == CudaCode::not_ready && std::chrono::steady_clock::now() < by)
      code = cuda->query_stream(stream);
    return code == CudaCode::success;
  }

  const std::shared_ptr<FakeCuda> cuda;
  std::shared_ptr<FakeNccl> nccl;
  std::optional<Error> no_driver;
  // Of a machine that may be slow. For what never ends: the library's.
  CudaPatience patience{.rest = kLong, .stop = kLong, .slow_looks = 3600, .stuck_looks = 3600};
  bool gives_all_back = true;  // at the end; not if the driver refuses to take it
  CudaStream stream = nullptr;
  bps_client* client = nullptr;

 private:
  static constexpr Duration kLong = std::chrono::hours(1);
  // A machine that stands still for some seconds may hear them.
  const ExpectLog slow_join_{"still waiting to join"}, slow_hello_{"no handshake within"};
  int device_ = 0;
  std::vector<void*> memory_;
  std::vector<std::byte> read_ = std::vector<std::byte>(sizeof(float));
};

}  // namespace bps::testing

#include "bench/gpu/gpu.h"

#include <fmt/format.h>

namespace bps::bench {
namespace {

constexpr std::chrono::seconds kStreamPatience{30};

}  // namespace

TimePoint steady_now() { return std::chrono::steady_clock::now(); }

Result<int> count_gpus(CudaApi& cuda) {
  int count = 0;
  const CudaCode code = cuda.device_count(count);
  if (code == CudaCode::success) return count;
  return make_error(ErrorCode::os,
                    fmt::format("{}: {}", name_of(CudaCall::device_count), cuda.describe(code)));
}

Result<GpuMemory> GpuMemory::allocate(Gpu gpu, std::size_t bytes) {
  const CudaDevice::Current current(*gpu);
  if (!current.status().ok()) return current.status().error();
  void* memory = nullptr;
  if (const CudaCode code = gpu->api().allocate(memory, bytes); code != CudaCode::success) {
    Error error = gpu->error(CudaCall::allocate, code);
    error.message += fmt::format(" (of {} bytes)", bytes);
    if (code == CudaCode::out_of_memory) error.advice = "use smaller --bytes, or an idle GPU";
    return error;
  }
  GpuMemory made;
  made.gpu_ = std::move(gpu);
  made.memory_ = {static_cast<std::byte*>(memory), bytes};
  return made;
}

GpuMemory::~GpuMemory() {
  if (gpu_ == nullptr) return;
  const CudaDevice::Current current(*gpu_);
  if (current.status().ok()) (void)gpu_->api().free(memory_.data());
}

Result<PinnedBuffer> PinnedBuffer::allocate(Gpu gpu, std::size_t bytes) {
  auto memory = Buffer::allocate(bytes);
  if (!memory) return memory.error();
  PinnedBuffer made;
  made.memory_ = std::move(*memory);
  const CudaDevice::Current current(*gpu);
  if (!current.status().ok()) return current.status().error();
  const CudaCode code = gpu->api().register_host(made.memory_.data(), bytes);
  if (code != CudaCode::success) {
    Error error = gpu->error(CudaCall::register_host, code);
    error.message += fmt::format(" (of {} bytes)", bytes);
    error.advice = "use smaller --bytes, or raise the limit of locked memory (ulimit -l)";
    return error;
  }
  made.gpu_ = std::move(gpu);
  return made;
}

PinnedBuffer::~PinnedBuffer() {
  if (gpu_ == nullptr) return;
  const CudaDevice::Current current(*gpu_);
  if (current.status().ok()) (void)gpu_->api().unregister_host(memory_.data());
}

Result<GpuStream> GpuStream::make(Gpu gpu, Now now) {
  const CudaDevice::Current current(*gpu);
  if (!current.status().ok()) return current.status().error();
  GpuStream made;
  if (Status made_it = gpu->check(CudaCall::create_stream, gpu->api().create_stream(made.stream_, 0));
      !made_it)
    return std::move(made_it).error();
  made.gpu_ = std::move(gpu);
  made.now_ = std::move(now);
  return made;
}

GpuStream::~GpuStream() {
  if (gpu_ == nullptr) return;
  (void)wait();
  const CudaDevice::Current current(*gpu_);
  if (current.status().ok()) (void)gpu_->api().destroy_stream(stream_);
}

Status GpuStream::copy_to_host(std::span<std::byte> to, std::span<const std::byte> from) {
  const CudaDevice::Current current(*gpu_);
  if (!current.status().ok()) return current.status();
  return gpu_->check(CudaCall::copy_to_host,
                     gpu_->api().copy_to_host(to.data(), from.data(), from.size(), stream_));
}

Status GpuStream::copy_to_device(std::span<std::byte> to, std::span<const std::byte> from) {
  const CudaDevice::Current current(*gpu_);
  if (!current.status().ok()) return current.status();
  return gpu_->check(CudaCall::copy_to_device,
                     gpu_->api().copy_to_device(to.data(), from.data(), from.size(), stream_));
}

Result<bool> GpuStream::is_idle() {
  const CudaDevice::Current current(*gpu_);
  if (!current.status().ok()) return current.status().error();
  const CudaCode code = gpu_->api().query_stream(stream_);
  if (code != CudaCode::success && code != CudaCode::not_ready)
    return gpu_->error(CudaCall::query_stream, code);
  return code == CudaCode::success;
}

Status GpuStream::wait() {
  const TimePoint deadline = now_() + kStreamPatience;
  while (true) {
    const auto idle = is_idle();
    if (!idle) return idle.error();
    if (*idle) return {};
    if (now_() > deadline)
      return make_error(
          ErrorCode::deadline,
          fmt::format("{} has not ended its work after {} s", gpu_->name(), kStreamPatience.count()),
          "see whether another program keeps it busy (nvidia-smi), and the kernel's log (dmesg)");
  }
}

}  // namespace bps::bench

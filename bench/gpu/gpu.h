// A GPU as the benchmark uses it: memory of the device, registered memory of the host, streams, and waiting
// for them.
//
// Owner: whoever measures. One thread. All of it gives back what it took when it goes: the GPU
// itself goes last, and memory after the streams that use it. Failure: a status with the driver's call, the
// GPU, and what the driver says.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "bench/engines/buffer.h"
#include "client/src/gpu/driver/cuda_device.h"
#include "proto/base/loop/event_loop.h"

namespace bps::bench {

// Where time comes from.
using Now = std::function<TimePoint()>;
TimePoint steady_now();

using Gpu = std::shared_ptr<CudaDevice>;

// How many GPUs there are.
Result<int> count_gpus(CudaApi& cuda);

// Memory of a GPU.
class GpuMemory {
 public:
  GpuMemory() = default;
  GpuMemory(GpuMemory&& other) noexcept { swap(other); }
  GpuMemory& operator=(GpuMemory&& other) noexcept { return swap(other), *this; }
  ~GpuMemory();
  static Result<GpuMemory> allocate(Gpu gpu, std::size_t bytes);

  std::byte* data() const { return memory_.data(); }
  std::span<std::byte> span() const {
    return memory_;
  }  // to be handed to the driver; the host cannot read it
  std::size_t size() const { return memory_.size(); }

 private:
  void swap(GpuMemory& other) {
    std::swap(gpu_, other.gpu_);
    std::swap(memory_, other.memory_);
  }
  Gpu gpu_;
  std::span<std::byte> memory_;
};

// Memory of the host that GPUs copy to and from beside the host.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(PinnedBuffer&& other) noexcept { swap(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept { return swap(other), *this; }
  ~PinnedBuffer();
  static Result<PinnedBuffer> allocate(Gpu gpu, std::size_t bytes);

  std::byte* data() const { return memory_.data(); }
  std::span<std::byte> span() const { return memory_.span(); }

 private:
  void swap(PinnedBuffer& other) {
    std::swap(gpu_, other.gpu_);
    std::swap(memory_, other.memory_);
  }
  Gpu gpu_;  // none: not registered
  Buffer memory_;
};

// Work of a GPU, one piece after another.
class GpuStream {
 public:
  GpuStream() = default;
  GpuStream(GpuStream&& other) noexcept { swap(other); }
  GpuStream& operator=(GpuStream&& other) noexcept { return swap(other), *this; }
  ~GpuStream();  // waits: goes before the memory that its work uses
  static Result<GpuStream> make(Gpu gpu, Now now);

  CudaStream get() const { return stream_; }
  // Begins a copy of all of `from`, to or from memory that is registered.
  Status copy_to_host(std::span<std::byte> to, std::span<const std::byte> from);
  Status copy_to_device(std::span<std::byte> to, std::span<const std::byte> from);
  Result<bool> is_idle();
  // Until all that was begun has ended; asks again and again, for at most 30 s.
  Status wait();

 private:
  void swap(GpuStream& other) {
    std::swap(gpu_, other.gpu_);
    std::swap(now_, other.now_);
    std::swap(stream_, other.stream_);
  }
  Gpu gpu_;
  Now now_;
  CudaStream stream_ = nullptr;
};

}  // namespace bps::bench

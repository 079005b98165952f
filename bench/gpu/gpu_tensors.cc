#include "bench/gpu/gpu_tensors.h"

namespace bps::bench {

Result<GpuTensors> GpuTensors::allocate(Gpu gpu, Now now, std::size_t bytes, bool in_place) {
  GpuTensors tensors;
  tensors.gpu_ = gpu;
  tensors.in_place_ = in_place;
  for (GpuMemory* memory : {&tensors.in_, in_place ? nullptr : &tensors.out_}) {
    if (memory == nullptr) continue;
    auto made = GpuMemory::allocate(gpu, bytes);
    if (!made) return std::move(made).error();
    *memory = std::move(*made);
  }
  auto host = PinnedBuffer::allocate(gpu, bytes);
  if (!host) return std::move(host).error();
  tensors.host_ = std::move(*host);
  auto stream = GpuStream::make(std::move(gpu), std::move(now));
  if (!stream) return std::move(stream).error();
  tensors.stream_ = std::move(*stream);
  return tensors;
}

Status GpuTensors::push() {
  Status status = stream_.copy_to_device(in_.span(), host());
  return status.ok() ? stream_.wait() : status;
}

Status GpuTensors::pull() {
  Status status = stream_.copy_to_host(host(), result().span());
  return status.ok() ? stream_.wait() : status;
}

bps_buffer GpuTensors::piece(const GpuMemory& memory, std::size_t offset, std::size_t bytes) const {
  bps_buffer out{};
  out.struct_size = sizeof out;
  out.pointer = memory.data() + offset;
  out.bytes = bytes;
  out.kind = BPS_MEMORY_CUDA;
  out.device = gpu_->ordinal();
  out.stream = stream_.get();
  return out;
}

}  // namespace bps::bench

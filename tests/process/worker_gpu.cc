#include "tests/process/worker_gpu.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "bench/gpu/gpu.h"
#include "client/src/gpu/driver/real_cuda.h"

namespace {

template <class T>
T taken(bps::Result<T> result) {
  if (!result) throw std::runtime_error(to_string(result.error()));
  return std::move(result).value();
}

void must(const bps::Status& status) {
  if (!status) throw std::runtime_error(to_string(status.error()));
}

}  // namespace

struct WorkerGpu::Parts {
  bps::bench::Gpu gpu;
  std::vector<bps::bench::GpuMemory> tensors;
  bps::bench::PinnedBuffer host;
  bps::bench::GpuStream stream;
};

WorkerGpu::WorkerGpu(int local_rank, const std::vector<std::span<float>>& tensors)
    : parts_(std::make_unique<Parts>()) {
  auto cuda = taken(bps::open_cuda());
  Parts& parts = *parts_;
  parts.gpu = taken(bps::CudaDevice::open(cuda, local_rank % taken(bps::bench::count_gpus(*cuda))));
  std::size_t largest = 1;
  for (const std::span<float> tensor : tensors) {
    const std::size_t bytes = std::max<std::size_t>(1, tensor.size() * sizeof(float));
    largest = std::max(largest, bytes);
    parts.tensors.push_back(taken(bps::bench::GpuMemory::allocate(parts.gpu, bytes)));
  }
  parts.host = taken(bps::bench::PinnedBuffer::allocate(parts.gpu, largest));
  parts.stream = taken(bps::bench::GpuStream::make(parts.gpu, bps::bench::steady_now));
}

WorkerGpu::~WorkerGpu() = default;

void WorkerGpu::write(std::size_t tensor, std::span<const float> values) {
  if (values.empty()) return;
  const auto here = parts_->host.span().first(values.size() * sizeof(float));
  std::memcpy(here.data(), values.data(), here.size());
  must(parts_->stream.copy_to_device(parts_->tensors[tensor].span().first(here.size()), here));
  must(parts_->stream.wait());  // the next tensor goes by way of the same memory
}

void WorkerGpu::read(std::size_t tensor, std::span<float> values) {
  if (values.empty()) return;
  const auto here = parts_->host.span().first(values.size() * sizeof(float));
  must(parts_->stream.copy_to_host(here, parts_->tensors[tensor].span().first(here.size())));
  must(parts_->stream.wait());
  std::memcpy(values.data(), here.data(), here.size());
}

WorkerGpu::Memory WorkerGpu::memory(std::size_t tensor) const {
  const bps::bench::GpuMemory& memory = parts_->tensors[tensor];
  return {memory.data(), memory.size(), parts_->gpu->ordinal(), parts_->stream.get()};
}

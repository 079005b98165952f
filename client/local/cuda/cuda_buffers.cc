#include "client/local/cuda/cuda_buffers.h"

#include <fmt/format.h>

namespace bps {

Result<OperationBuffer> CudaBuffers::describe(void* memory, std::size_t bytes, CudaStream stream) {
  CudaPointer pointer;
  {
    const CudaDevice::Current current(*device_);
    if (!current.status().ok()) return current.status().error();
    if (const CudaCode code = device_->api().describe_pointer(pointer, memory); code != CudaCode::success)
      return device_->error(CudaCall::describe_pointer, code);
  }
  if (!pointer.is_device)
    return make_error(ErrorCode::invalid_argument,
                      "the buffer is said to be a GPU's, and is not in any GPU's memory",
                      "say that it is the host's");
  if (pointer.device != device_->ordinal())
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("the buffer is in the memory of GPU {}, and this worker has {}",
                                  pointer.device, device_->name()),
                      "use one GPU in each worker");
  const auto* const end = static_cast<const std::byte*>(pointer.start) + pointer.size;
  if (static_cast<std::size_t>(end - static_cast<const std::byte*>(memory)) < bytes)
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("the buffer of {} bytes ends beyond the memory that was allocated on {}",
                                  bytes, device_->name()));
  auto event = events_->record(stream);
  if (!event) return event.error();
  return OperationBuffer{static_cast<std::byte*>(memory), bytes, MemoryKind::cuda, pointer.device, *event};
}

}  // namespace bps

#include "client/src/gpu/driver/cuda_buffers.h"

#include <fmt/format.h>

#include <algorithm>

namespace bps {

// An allocation is all that a buffer may lie in. But a range may consist of several mappings (cuMemMap;
// PyTorch's expandable segments), of which the driver tells one, or it may be reserved beyond its last one:
// so each is asked for, and the last byte.
Status CudaBuffers::check(const std::byte* memory, std::size_t bytes) const {
  const CudaDevice::Current current(*device_);
  if (!current.status().ok()) return current.status().error();
  const std::byte* const last = memory + std::max<std::size_t>(bytes, 1) - 1;
  for (const std::byte* at = memory;;) {
    CudaPointer pointer;
    if (const CudaCode code = device_->api().describe_pointer(pointer, at); code != CudaCode::success)
      return device_->error(CudaCall::describe_pointer, code);
    if (!pointer.is_device && at == memory)
      return make_error(ErrorCode::invalid_argument,
                        "the buffer is said to be a GPU's, and is not in any GPU's memory",
                        "say that it is the host's");
    if (pointer.is_device && pointer.device != device_->ordinal())
      return make_error(ErrorCode::invalid_argument,
                        fmt::format("the buffer is in the memory of GPU {}, and this worker has {}",
                                    pointer.device, device_->name()),
                        "use one GPU in each worker");
    const auto* const end = static_cast<const std::byte*>(pointer.start) + pointer.size;
    // What begins with mappings does not go on with an allocation, nor the other way round.
    const bool ends_here = pointer.is_whole && (at != memory || end <= last);
    if (!pointer.is_device || ends_here)
      return make_error(ErrorCode::invalid_argument,
                        fmt::format("the buffer of {} bytes ends beyond the memory that was allocated on {}",
                                    bytes, device_->name()));
    if (pointer.is_whole || at == last) return {};
    at = end > at && end <= last ? end : last;
  }
}

Result<OperationBuffer> CudaBuffers::describe(void* memory, std::size_t bytes, CudaStream stream) {
  if (const Status status = check(static_cast<const std::byte*>(memory), bytes); !status.ok())
    return status.error();
  auto event = events_.record(stream);
  if (!event) return event.error();
  OperationBuffer buffer;
  buffer.bytes = {static_cast<std::byte*>(memory), bytes};
  buffer.memory = MemoryKind::cuda;
  buffer.device = device_->ordinal();
  buffer.stream = stream;
  buffer.event = std::move(event).value();
  return buffer;
}

}  // namespace bps

#include "client/src/engine/operation_check.h"

#include <fmt/core.h>

#include <algorithm>

namespace bps {

Status check_buffer(const TensorShape& tensor, const char* what, const void* pointer, std::size_t bytes) {
  if (bytes != tensor.bytes()) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("buffer '{}' has {} bytes, tensor '{}' has {} ({} elements of {})", what,
                                  bytes, tensor.name, tensor.bytes(), tensor.elements, name_of(tensor.dtype)),
                      "pass exactly the size that was declared");
  }
  if (pointer == nullptr && bytes > 0) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("buffer '{}' of tensor '{}' is a null pointer, {} bytes are needed", what,
                                  tensor.name, bytes));
  }
  return {};
}

Status check_overlap(const TensorShape& tensor, const void* in, const void* out) {
  const auto a = reinterpret_cast<std::uintptr_t>(in);
  const auto b = reinterpret_cast<std::uintptr_t>(out);
  const std::uintptr_t distance = a < b ? b - a : a - b;
  if (distance == 0 || distance >= tensor.bytes()) return {};
  return make_error(
      ErrorCode::invalid_argument,
      fmt::format("input and output of tensor '{}' overlap: they are {} bytes apart and {} bytes long",
                  tensor.name, distance, tensor.bytes()),
      "use the same memory for both, or memory that does not overlap");
}

Status check_memory(const TensorShape& tensor, LocalGrouping grouping, MemoryKind memory, bool view) {
  const auto refuse = [&](const char* why, const char* advice) {
    return make_error(ErrorCode::invalid_argument, fmt::format("tensor '{}' {}", tensor.name, why), advice);
  };
  if (tensor.elements == 0) return {};
  if (memory == MemoryKind::host) {
    if (grouping != LocalGrouping::nccl) return {};
    return refuse("is given in the host's memory, and local_group is nccl, which sums in that of the GPUs",
                  "give CUDA memory, or set local_group host or off (BPS_LOCAL_GROUP) on all ranks");
  }
  if (grouping == LocalGrouping::host) {
    return refuse("is given in CUDA memory, and local_group is host, which sums in the host's",
                  "set local_group nccl or off (BPS_LOCAL_GROUP) on all ranks, or give host memory");
  }
  if (tensor.is_async)
    return refuse("is asynchronous, and given in CUDA memory", "copy it to host memory first");
  if (view) return refuse("is given in CUDA memory, and its answer is to be read in place", "give an output");
  return {};
}

Status check_root(std::int64_t root, std::uint32_t world_size) {
  if (root >= 0 && root < static_cast<std::int64_t>(world_size)) return {};
  return make_error(ErrorCode::invalid_argument,
                    fmt::format("root {} is no rank of this job: ranks are 0 to {}", root, world_size - 1));
}

}  // namespace bps

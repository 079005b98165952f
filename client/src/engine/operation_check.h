// What can be wrong with an operation before it is sent, with the exact numbers. Pure; used by the
// C API on the caller's thread and by the engine on its loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "proto/base/dtype.h"
#include "proto/base/ids.h"
#include "proto/base/memory/memory_kind.h"
#include "proto/base/result.h"
#include "proto/wire/local_messages.h"

namespace bps {

struct TensorShape {
  std::string name;
  DType dtype = DType::f32;
  std::uint64_t elements = 0;
  bool is_async = false;
  std::uint64_t bytes() const { return elements * size_of(dtype); }
};

// `what` names the buffer: "in", "out", "buffer".
Status check_buffer(const TensorShape& tensor, const char* what, const void* pointer, std::size_t bytes);

// Two buffers of the tensor: the same memory or apart.
Status check_overlap(const TensorShape& tensor, const void* in, const void* out);

// Memory of this kind, where the ranks of a host sum so; `view`: the answer is to be read in place.
Status check_memory(const TensorShape& tensor, LocalGrouping grouping, MemoryKind memory, bool view);

Status check_root(std::int64_t root, std::uint32_t world_size);

}  // namespace bps

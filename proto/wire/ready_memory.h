// What a LocalReady says of its inputs' memory: a MemoryKind, or a third value, that of f32 on a GPU which
// the tensor's declaration has as bf16 or f16. No buffer is of that kind, and no daemon hears of it: ranks of
// a host say it to each other, because some that cast and some that do not would wait in NCCL for each other.
#pragma once

#include "proto/base/memory/memory_kind.h"

namespace bps {

inline constexpr MemoryKind kCastMemory{kMemoryKindCount};
inline constexpr std::uint8_t kReadyMemoryCount = kMemoryKindCount + 1;

}  // namespace bps

// Where the memory of an operation lies.
#pragma once

#include <cstdint>

namespace bps {

enum class MemoryKind : std::uint8_t { host = 0, cuda = 1 };
inline constexpr std::uint8_t kMemoryKindCount = 2;

}  // namespace bps

// How much memory a server may promise to tensors, where nobody says it. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/base/memory/memory_bounds.h"

namespace bps {

// What the limit allows, less a sixteenth and at least 64 MiB for the program, its connections and everybody
// else; of less than 128 MiB one half. 4 GiB where no limit is known.
std::uint64_t default_memory_max(const MemoryBound& limit);

// What is wrong with a larger one.
std::optional<std::string> doubt_about(std::uint64_t memory_max, const MemoryBound& limit);

}  // namespace bps

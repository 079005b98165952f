// Address space, where `ulimit -v` or `ulimit -d` leaves little of it.
//
// Any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "proto/base/error.h"

namespace bps {

// To be called before a thread is started. malloc reserves 64 MiB of address space for each thread that
// allocates, 128 MiB for a moment, and hardly uses any of it. A limit counts all of it, so tensors and the
// stacks of threads would have no room. So if less than kPlentyOfSpace is left, threads share what is
// reserved already: for the rest of this process's life, also those of the program.
void spare_address_space();
inline constexpr std::uint64_t kPlentyOfSpace = std::uint64_t{2} << 30;

// What the system refused with `error`: `bytes` that were to be mapped. Names the limit that is in the way.
Error cannot_map(std::string_view what, std::uint64_t bytes, int error);

}  // namespace bps

// Which CPUs this process may run on, and threads that run on some of them only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "proto/base/result.h"

namespace bps {

// At least 1.
std::uint32_t usable_cores();

// Their numbers, in ascending order: of the calling thread, which has them from who started it. Empty:
// unknown.
std::vector<std::uint32_t> usable_cpus();

// The calling thread runs on these only. Errors: none of them can be had.
Status run_on(std::span<const std::uint32_t> cpus);

}  // namespace bps

// How many CPUs this process may run on.
#pragma once

#include <cstdint>

namespace bps {

// At least 1.
std::uint32_t usable_cores();

}  // namespace bps

// The suite runs twice on the simulator's network: where no connection lends payloads, and where all do.
#pragma once

#include <cstdint>

namespace bps::conformance {

extern const std::uint64_t kLendingPercent;

}  // namespace bps::conformance

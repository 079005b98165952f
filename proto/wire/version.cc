#include "proto/wire/version.h"

#include <algorithm>

namespace bps {
namespace {

// The one number to raise.
constexpr std::uint16_t kVersionOfThisCode = 16;

// bps_next_version() of cmake/bps.cmake compiles this file a second time, for tests.
#ifdef BPS_NEXT_VERSION
constexpr std::uint16_t kVersion = kVersionOfThisCode + 1;
#else
constexpr std::uint16_t kVersion = kVersionOfThisCode;
#endif

}  // namespace

const std::uint16_t kProtocolVersion = kVersion;
const std::uint16_t kLowestWorkerVersion = std::max<std::uint16_t>(kFirstPromisedVersion, kVersion - 1);

}  // namespace bps

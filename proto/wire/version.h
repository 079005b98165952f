// The versions of the protocol that this program speaks. PROTOCOL.md, section 3, says what a version
// promises, and what to do to raise it.
//
// A program that connects speaks kProtocolVersion alone. A daemon also accepts workers of the version before.
// The numbers are no constants of the compiler: tests link the same objects a second time, as programs of the
// next version (version.cc).
#pragma once

#include <cstdint>

namespace bps {

extern const std::uint16_t kProtocolVersion;
// Of the workers that a daemon accepts.
extern const std::uint16_t kLowestWorkerVersion;

// Since this version, the hello of any version can be read.
inline constexpr std::uint16_t kFirstFrozenVersion = 9;
// Since this version, daemons accept workers of the version before.
inline constexpr std::uint16_t kFirstPromisedVersion = 16;

}  // namespace bps

// What a program can speak. It is in each hello, and in the Welcome or Refused that answers it; the layout of
// these three never changes (PROTOCOL.md, section 3).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "proto/wire/version.h"

namespace bps {

// Something that not every program of one version can, with what the other side needs to know of it. A
// receiver ignores the numbers that it does not know.
struct Feature {
  std::uint16_t number = 0;
  std::vector<std::byte> value = {};
  friend bool operator==(const Feature&, const Feature&) = default;
};

// Of a program that connects, if nothing else is said.
struct Capabilities {
  std::uint16_t lowest_version = kProtocolVersion;
  std::uint16_t highest_version = kProtocolVersion;
  std::vector<Feature> features = {};  // by number, each once; there are none yet
  friend bool operator==(const Capabilities&, const Capabilities&) = default;
};

// Of a program that accepts workers. Only their hellos may be of the version before: scheduler, servers and
// bpsctl of a pool are of one version, and so are the workers of a job.
inline Capabilities accepting_capabilities() { return {kLowestWorkerVersion, kProtocolVersion}; }

// The version that this program uses with a peer with which it shares one: the highest that both speak.
inline std::uint16_t version_in_use(const Capabilities& peer) {
  return std::min(peer.highest_version, kProtocolVersion);
}

// Whether the two sides have a version in common.
inline bool share_a_version(const Capabilities& a, const Capabilities& b) {
  return a.lowest_version <= b.highest_version && b.lowest_version <= a.highest_version;
}

}  // namespace bps

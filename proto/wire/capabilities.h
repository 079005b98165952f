// What a program can speak. It is in each hello, and in the Welcome or Refused that answers it; the layout of
// these three never changes (PROTOCOL.md, section 3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proto/wire/limits.h"

namespace bps {

// Something that not every program of one version can, with what the other side needs to know of it. A
// receiver ignores the numbers that it does not know.
struct Feature {
  std::uint16_t number = 0;
  std::vector<std::byte> value = {};
  friend bool operator==(const Feature&, const Feature&) = default;
};

struct Capabilities {
  std::uint16_t lowest_version = kLowestProtocolVersion;
  std::uint16_t highest_version = kProtocolVersion;
  std::vector<Feature> features = {};  // by number, each once; there are none yet
  friend bool operator==(const Capabilities&, const Capabilities&) = default;
};

// Whether the two sides have a version in common.
inline bool share_a_version(const Capabilities& a, const Capabilities& b) {
  return a.lowest_version <= b.highest_version && b.lowest_version <= a.highest_version;
}

}  // namespace bps

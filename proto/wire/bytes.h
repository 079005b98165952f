// Numbers as they lie in frames and records: little-endian, at any address.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>

namespace bps {

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian and so is every host of bps");

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

}  // namespace bps

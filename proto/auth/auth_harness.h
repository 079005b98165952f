// For tests of keys and handshakes: keys of one repeated byte, and bytes as text.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/auth/key.h"

namespace bps::testing {

inline SharedKey key_of(std::size_t bytes, int value) {
  return std::make_shared<const Key>(std::vector<std::byte>(bytes, static_cast<std::byte>(value)));
}

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

inline std::string hex(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

}  // namespace bps::testing

// What a MAC covers, put together so that no two different lists of fields give the same bytes: a label and
// texts with their length before them, numbers as 8 bytes, little-endian. PROTOCOL.md says which fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace bps {

class MacInput {
 public:
  explicit MacInput(std::string_view label) { text(label); }

  MacInput& number(std::uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8)
      bytes_.push_back(static_cast<std::byte>(value >> shift));
    return *this;
  }
  MacInput& bytes(std::span<const std::byte> value) {
    number(value.size());
    bytes_.insert(bytes_.end(), value.begin(), value.end());
    return *this;
  }
  MacInput& text(std::string_view value) { return bytes(std::as_bytes(std::span(value))); }

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace bps

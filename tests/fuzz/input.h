// The bytes of a fuzz input as a row of choices. When they are used up every choice is 0.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "proto/wire/codec.h"
#include "proto/wire/frame.h"
#include "proto/wire/testing/random_messages.h"
#include "proto/wire/testing/sample_messages.h"
#include "tests/fuzz/target.h"

namespace bps::fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }
  bool flag() { return (byte() & 1) != 0; }
  // One byte while that is enough: a mutation changes one choice, and moves no other.
  std::uint32_t below(std::uint32_t limit) {
    std::uint32_t value = byte();
    if (limit > 256) value |= static_cast<std::uint32_t>(byte()) << 8;
    return value % limit;
  }
  // Mostly small, sometimes anything.
  std::uint64_t number() {
    const std::uint8_t first = byte();
    if (first < 0xf8) return first & 7;
    std::uint64_t value = 0;
    for (int i = 0; i < (1 << (first & 3)); ++i)
      value = value << 8 | byte();
    return value;
  }
  // Any one: NaNs, infinities and denormals among them.
  double real() { return std::bit_cast<double>(number()); }
  std::uint32_t number32() { return static_cast<std::uint32_t>(number()); }
  std::span<const std::byte> take(std::size_t bytes) {
    const auto taken = rest_.first(std::min(bytes, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return std::as_bytes(taken);
  }
  std::span<const std::byte> rest() { return take(rest_.size()); }
  std::string text(std::size_t bytes) {
    const auto taken = take(bytes);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

 private:
  std::span<const std::uint8_t> rest_;
};

// A message of any kind with any content that is valid.
inline Message any_message(Input& input) {
  const std::uint64_t low = input.byte();
  return testing::RandomMessages(low | static_cast<std::uint64_t>(input.byte()) << 8).next();
}

// As its receiver gets it; nothing if that refuses it.
inline std::optional<Message> received(const Message& message, std::size_t max_header_bytes) {
  static Encoder encoder;
  const auto frame = encoder.encode(message, 0);
  const auto header = frame.subspan(kFramePrefixBytes);
  Message out;
  if (header.size() > max_header_bytes || !decode(header, out)) return std::nullopt;
  return out;
}

inline Bytes to_bytes(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return {data, data + bytes.size()};
}

// For targets whose bytes are choices: there is nothing better to begin with.
inline std::vector<Bytes> random_seeds(std::size_t count, std::size_t most_bytes) {
  std::mt19937_64 random(count);
  std::vector<Bytes> all(count);
  for (Bytes& bytes : all) {
    bytes.resize(1 + random() % most_bytes);
    for (std::uint8_t& byte : bytes)
      byte = static_cast<std::uint8_t>(random());
  }
  return all;
}

}  // namespace bps::fuzz

// For tests of the codec: messages as bytes, and how these are refused.
#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "proto/wire/codec.h"
#include "proto/wire/frame.h"

namespace bps::testing {

inline std::vector<std::byte> header_of(const Message& message) {
  Encoder encoder;
  const auto frame = encoder.encode(message, 0);
  return {frame.begin() + kFramePrefixBytes, frame.end()};
}

// The message of the error with which a header is refused.
inline std::string refusal(const Message& message) {
  Message out;
  const Status status = decode(header_of(message), out);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::protocol);
  return status.error().message;
}

}  // namespace bps::testing

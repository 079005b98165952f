// The bytes of the protocol, as they were agreed. When one of kGolden fails, the wire has changed: raise
// kProtocolVersion, say so in PROTOCOL.md, and take the new bytes from the failure's output. kFrozen never
// changes.
#include <catch2/catch.hpp>
#include <string>
#include <string_view>

#include "proto/wire/codec.h"
#include "proto/wire/frame.h"
#include "proto/wire/testing/sample_messages.h"

namespace bps {
namespace {

#include "proto/wire/golden_bytes.inc"
// Made of the struct above.
#include "proto/wire/frozen_bytes.inc"

std::string to_hex(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

std::vector<std::byte> from_hex(std::string_view text) {
  auto digit = [](char c) { return static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10); };
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(digit(text[i]) << 4 | digit(text[i + 1])));
  }
  return bytes;
}

// What a receiver does with a frame, all of whose bytes have arrived or will never arrive.
bool accepted(std::span<const std::byte> frame, Message& message) {
  if (frame.size() < kFramePrefixBytes) {
    (void)check_prefix_start(frame).ok();
    return false;
  }
  const auto prefix = read_prefix(frame.first<kFramePrefixBytes>(), kMaxControlHeaderBytes);
  if (!prefix.ok()) return false;
  if (!check_header(frame.first<kFramePrefixBytes>(), frame.subspan(kFramePrefixBytes)).ok()) return false;
  return decode(frame.subspan(kFramePrefixBytes), message, prefix->version).ok();
}

// As long as the kind of a message: data frames carry a payload.
std::uint64_t sample_payload_bytes(const Message& message) {
  if (const auto* push = std::get_if<PushPull>(&message)) return push->rendezvous ? 0 : 262'144;
  return std::holds_alternative<Aggregate>(message) ? 262'144 : 0;
}

}  // namespace

TEST_CASE("golden bytes: every message has them, and they have not changed") {
  const auto samples = testing::sample_messages();
  REQUIRE(std::size(kGolden) == samples.size());
  Encoder encoder;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    CHECK(std::string(name_of(samples[i])) == kGolden[i].name);
    const std::string now = to_hex(encoder.encode(samples[i], sample_payload_bytes(samples[i])));
    INFO(name_of(samples[i]));
    CHECK(now == kGolden[i].hex);
  }
}

TEST_CASE("frozen bytes: what the handshake needs has not changed, and is read whatever else a peer speaks") {
  Encoder encoder;
  std::size_t next = 0;
  for (Message sample : testing::sample_messages()) {
    Capabilities* const capabilities = capabilities_of(sample);
    if (capabilities == nullptr && !std::holds_alternative<Challenge>(sample) &&
        !std::holds_alternative<Proof>(sample))
      continue;
    if (capabilities != nullptr) *capabilities = {9, 0xffff, {{3, {std::byte{1}, std::byte{2}}}}};
    REQUIRE(next < std::size(kFrozen));
    const Golden& frozen = kFrozen[next++];
    INFO(frozen.name);
    CHECK(to_hex(encoder.encode(sample, 0).subspan(kFramePrefixBytes)) == frozen.hex);
    Message message;
    REQUIRE(decode(from_hex(frozen.hex), message, prefix_version(sample)).ok());
    CHECK(message == sample);
  }
  CHECK(next == std::size(kFrozen));
}

TEST_CASE("golden bytes: they decode to the message they were made of") {
  const auto samples = testing::sample_messages();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    Message message;
    INFO(kGolden[i].name);
    REQUIRE(accepted(from_hex(kGolden[i].hex), message));
    CHECK(message == samples[i]);
  }
}

TEST_CASE("golden bytes: every truncation is refused") {
  for (const Golden& golden : kGolden) {
    const auto frame = from_hex(golden.hex);
    Message message;
    for (std::size_t n = 0; n < frame.size(); ++n) {
      // A copy of exactly n bytes, so that a sanitizer sees any read behind them.
      const std::vector<std::byte> cut(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(n));
      INFO(golden.name << " cut to " << n);
      REQUIRE_FALSE(accepted(cut, message));
    }
  }
}

TEST_CASE("golden bytes: every flipped byte is refused") {
  for (const Golden& golden : kGolden) {
    const auto frame = from_hex(golden.hex);
    Message message;
    for (std::size_t i = 0; i < frame.size(); ++i) {
      for (const int mask : {0x01, 0x80, 0xff}) {
        auto bad = frame;
        bad[i] ^= static_cast<std::byte>(mask);
        INFO(golden.name << " byte " << i);
        REQUIRE_FALSE(accepted(bad, message));
      }
    }
  }
}

}  // namespace bps

// The bytes of the protocol, as they were agreed. When one fails, the wire has changed: PROTOCOL.md, section
// 3, says how to raise the version. The new bytes are in the failure's output. kFrozen never changes.
//
// Tests with the tag [next] also run as a program of the next version (wire_test_next).
#include <algorithm>
#include <catch2/catch.hpp>
#include <iterator>
#include <string>
#include <string_view>

#include "proto/wire/codec.h"
#include "proto/wire/frame.h"
#include "proto/wire/testing/sample_messages.h"

namespace bps {
namespace {

struct Golden {
  const char* name;
  const char* hex;
};

#include "proto/wire/frozen_bytes.inc"
#include "proto/wire/golden_16.inc"

// Of every version since kFirstPromisedVersion.
struct GoldenSet {
  std::uint16_t version;
  std::span<const Golden> frames;
};
constexpr GoldenSet kGoldenSets[] = {{16, kGolden16}};

// What this version sends.
std::span<const Golden> golden() {
  const GoldenSet& last = *std::rbegin(kGoldenSets);
  REQUIRE(last.version == kProtocolVersion);  // else: record its frames, and add them to kGoldenSets
  return last.frames;
}

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
Status take(std::span<const std::byte> frame, Message& message, std::uint16_t in_use) {
  if (frame.size() < kFramePrefixBytes) {
    if (Status start = check_prefix_start(frame); !start) return start;
    return make_error(ErrorCode::peer_lost, "cut short");
  }
  const auto prefix = read_prefix(frame.first<kFramePrefixBytes>(), kMaxControlHeaderBytes);
  if (!prefix.ok()) return prefix.error();
  if (Status header = check_header(frame.first<kFramePrefixBytes>(), frame.subspan(kFramePrefixBytes));
      !header)
    return header;
  return decode(frame.subspan(kFramePrefixBytes), message, prefix->version, in_use);
}

bool accepted(std::span<const std::byte> frame, Message& message) {
  return take(frame, message, kProtocolVersion).ok();
}

// As long as the kind of a message: data frames carry a payload.
std::uint64_t sample_payload_bytes(const Message& message) {
  if (const auto* push = std::get_if<PushPull>(&message)) return push->rendezvous ? 0 : 262'144;
  return std::holds_alternative<Aggregate>(message) ? 262'144 : 0;
}

}  // namespace

TEST_CASE("golden bytes: every message has them, and they have not changed") {
  const auto samples = testing::sample_messages();
  REQUIRE(golden().size() == samples.size());
  Encoder encoder;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    CHECK(std::string(name_of(samples[i])) == golden()[i].name);
    const std::string now = to_hex(encoder.encode(samples[i], sample_payload_bytes(samples[i])));
    INFO(name_of(samples[i]));
    CHECK(now == golden()[i].hex);
  }
}

TEST_CASE("golden bytes: every version that is promised has them", "[next]") {
  std::uint16_t next = kFirstPromisedVersion;
  for (const GoldenSet& set : kGoldenSets)
    CHECK(set.version == next++);
  CHECK(next > kLowestWorkerVersion);
}

// A worker of that version sends what this one reads, and reads what this one sends to it.
TEST_CASE("golden bytes: a daemon has kept those of the workers that it accepts", "[next]") {
  Encoder encoder;
  std::size_t replayed = 0;
  for (const GoldenSet& set : kGoldenSets) {
    if (set.version < kLowestWorkerVersion) continue;
    for (const Golden& golden : set.frames) {
      INFO(golden.name << " of version " << set.version);
      Message message;
      const Status status = take(from_hex(golden.hex), message, set.version);
      // Of these, a program takes only those of its own version.
      const bool is_of_one_version =
          std::string_view(golden.name) == "HelloServer" || std::string_view(golden.name) == "HelloAdmin" ||
          std::string_view(golden.name) == "HelloLocal" || std::string_view(golden.name) == "Welcome";
      if (is_of_one_version && set.version < kProtocolVersion) {
        REQUIRE_FALSE(status.ok());
        CHECK(status.error().message == other_version(set.version, set.version, kProtocolVersion).message);
        continue;
      }
      REQUIRE(status.ok());
      CHECK(std::string(name_of(message)) == golden.name);
      CHECK(to_hex(encoder.encode(message, sample_payload_bytes(message), set.version)) == golden.hex);
      ++replayed;
    }
  }
  CHECK(replayed > 0);
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
    REQUIRE(decode(from_hex(frozen.hex), message, prefix_version(sample, kProtocolVersion)).ok());
    CHECK(message == sample);
  }
  CHECK(next == std::size(kFrozen));
}

TEST_CASE("golden bytes: they decode to the message they were made of") {
  const auto samples = testing::sample_messages();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    Message message;
    INFO(golden()[i].name);
    REQUIRE(accepted(from_hex(golden()[i].hex), message));
    CHECK(message == samples[i]);
  }
}

TEST_CASE("golden bytes: every truncation is refused") {
  for (const Golden& one : golden()) {
    const auto frame = from_hex(one.hex);
    Message message;
    for (std::size_t n = 0; n < frame.size(); ++n) {
      // A copy of exactly n bytes, so that a sanitizer sees any read behind them.
      const std::vector<std::byte> cut(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(n));
      INFO(one.name << " cut to " << n);
      REQUIRE_FALSE(accepted(cut, message));
    }
  }
}

TEST_CASE("golden bytes: every flipped byte is refused") {
  for (const Golden& one : golden()) {
    const auto frame = from_hex(one.hex);
    Message message;
    for (std::size_t i = 0; i < frame.size(); ++i) {
      for (const int mask : {0x01, 0x80, 0xff}) {
        auto bad = frame;
        bad[i] ^= static_cast<std::byte>(mask);
        INFO(one.name << " byte " << i);
        REQUIRE_FALSE(accepted(bad, message));
      }
    }
  }
}

}  // namespace bps

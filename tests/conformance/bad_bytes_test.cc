// Peers that send what they should not lose their connection, with an error that says what was wrong; nobody
// else notices. Linked only where the fabric has raw peers.
#include <algorithm>
#include <string_view>

#include "proto/wire/codec.h"
#include "proto/wire/frame.h"
#include "tests/conformance/support.h"

namespace bps::conformance {
namespace {

using Bytes = std::vector<std::byte>;
using Catch::Contains;
using Catch::EndsWith;

Bytes bytes_of(std::string_view text) {
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

Bytes frame(const Message& message, std::uint64_t payload_bytes = 0) {
  Encoder encoder;
  const auto encoded = encoder.encode(message, payload_bytes);
  return {encoded.begin(), encoded.end()};
}

// The frame of a program that speaks another version, intact.
Bytes frame_of_version(const Message& message, std::uint16_t version) {
  Bytes bytes = frame(message);
  write_prefix(std::span(bytes).first<kFramePrefixBytes>(), std::span(bytes).subspan(kFramePrefixBytes), 0, 0,
               version);
  return bytes;
}

template <class T>
void put(Bytes& bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

// A listener with one raw peer, and a healthy connection beside it that must not suffer.
struct Victim {
  Victim() : fabric(make_fabric()) {
    auto made = fabric->transport().listen(fabric->loop(), fabric->any_endpoint(), [this](auto accepted) {
      (ends[0].connection ? ends[1] : ends[0]).attach(std::move(accepted));
    });
    REQUIRE(made.ok());
    listener = std::move(made).value();
    healthy.attach(fabric->transport().connect(fabric->loop(), listener->endpoint(), kLimit));
    REQUIRE(fabric->run_until([&] { return ends[0].connection != nullptr; }, kLimit));
    raw = fabric->raw_connect(listener->endpoint());
    REQUIRE(raw != nullptr);
    REQUIRE(fabric->run_until([&] { return ends[1].connection != nullptr; }, kLimit));
  }
  End& victim() { return ends[1]; }

  Error expect_closed() {
    REQUIRE(fabric->run_until([&] { return victim().closed == 1; }, kLimit));
    REQUIRE(fabric->run_until([&] { return read_to_end(); }, kLimit));
    CHECK_THAT(victim().end.message, Contains(victim().connection->peer()));
    healthy.send(heartbeat(1));
    REQUIRE(fabric->run_until([&] { return ends[0].messages == 1; }, kLimit));
    return victim().end;
  }

  bool read_to_end() {
    const Bytes more = raw->receive(4096);
    heard.insert(heard.end(), more.begin(), more.end());
    return more.empty() && raw->is_closed_by_peer();
  }

  std::unique_ptr<Fabric> fabric;
  Bytes heard;  // what the raw peer was sent before the end
  End ends[2];
  End healthy;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<RawPeer> raw;
};

Error answer_to(const Bytes& bytes) {
  Victim victim;
  victim.raw->send(bytes);
  return victim.expect_closed();
}

TEST_CASE("bytes that are no bps frame are recognised and refused") {
  const auto refusal = [](const Bytes& bytes) {
    const Error error = answer_to(bytes);
    CHECK(error.code == ErrorCode::protocol);
    return error.message;
  };
  CHECK_THAT(refusal(bytes_of("GET / HTTP/1.1\r\nHost: x\r\n\r\n")), Contains("HTTP"));
  CHECK_THAT(refusal(bytes_of("POST")), Contains("HTTP"));
  CHECK_THAT(refusal(bytes_of(std::string_view("\x16\x03\x01\x02\x00\x01\x00", 7))), Contains("TLS"));
  CHECK_THAT(refusal(pattern(1000, 5)), Contains("does not speak the bps protocol"));
  CHECK_THAT(refusal(Bytes(1, std::byte{0})), Contains("does not speak the bps protocol"));

  CHECK_THAT(refusal(frame_of_version(heartbeat(1), kProtocolVersion + 7)),
             Contains("version " + std::to_string(kProtocolVersion + 7)));

  Bytes flags = frame(heartbeat(1));
  put(flags, 6, std::uint16_t{0x8000});
  CHECK_THAT(refusal(flags), Contains("flags"));
}

TEST_CASE("damaged frames and lengths beyond the limits are refused") {
  const auto refusal = [](const Bytes& bytes) {
    const Error error = answer_to(bytes);
    CHECK(error.code == ErrorCode::protocol);
    return error.message;
  };
  Bytes crc = frame(heartbeat(1));
  crc.back() ^= std::byte{1};
  CHECK_THAT(refusal(crc), Contains("CRC"));

  Bytes header = frame(heartbeat(1));
  put(header, 8, std::uint32_t{0xffffffff});
  CHECK_THAT(refusal(header), Contains("4294967295 bytes"));

  Bytes slightly = frame(heartbeat(1));
  put(slightly, 8, static_cast<std::uint32_t>(kMaxHelloHeaderBytes + 1));
  CHECK_THAT(refusal(slightly), Contains(std::to_string(kMaxHelloHeaderBytes)));

  CHECK_THAT(refusal(frame(push_pull(1), kMaxPayloadBytes + 1)), Contains(std::to_string(kMaxPayloadBytes)));
  CHECK_THAT(refusal(frame(push_pull(1), UINT64_MAX)), Contains(std::to_string(kMaxPayloadBytes)));

  // A frame that is well formed and has a valid CRC, with a header that is rubbish.
  const Bytes rubbish = pattern(100, 3);
  Bytes framed(kFramePrefixBytes);
  write_prefix(std::span<std::byte, kFramePrefixBytes>(framed.data(), kFramePrefixBytes), rubbish, 0);
  framed.insert(framed.end(), rubbish.begin(), rubbish.end());
  CHECK_FALSE(refusal(framed).empty());
}

// The one frame in `bytes`.
Refused refused_in(const Bytes& bytes) {
  REQUIRE(bytes.size() > kFramePrefixBytes);
  const auto prefix = read_prefix(std::span(bytes).first<kFramePrefixBytes>(), kMaxHelloHeaderBytes);
  REQUIRE(prefix.ok());
  REQUIRE(bytes.size() == kFramePrefixBytes + prefix->header_bytes);
  const auto header = std::span(bytes).subspan(kFramePrefixBytes);
  REQUIRE(check_header(std::span(bytes).first<kFramePrefixBytes>(), header).ok());
  Message message;
  REQUIRE(decode(header, message, prefix->version).ok());
  REQUIRE(std::holds_alternative<Refused>(message));
  return std::get<Refused>(message);
}

TEST_CASE("who sends bad frames of bps hears why before the end, others hear nothing") {
  const auto answer = [](const Bytes& bytes) {
    Victim victim;
    victim.raw->send(bytes);
    victim.expect_closed();
    return victim.heard;
  };
  const std::uint16_t older = kFirstFrozenVersion - 1;  // its first bytes are enough
  const Bytes other_version = frame_of_version(heartbeat(1), older);
  for (const std::size_t bytes : {std::size_t{6}, other_version.size()}) {
    const Refused refused = refused_in(
        answer({other_version.begin(), other_version.begin() + static_cast<std::ptrdiff_t>(bytes)}));
    CHECK(refused.code == ErrorCode::protocol);
    CHECK_THAT(refused.message, EndsWith("this side speaks version " + std::to_string(kProtocolVersion)) &&
                                    Contains("version " + std::to_string(older)));
    CHECK_THAT(refused.advice, Contains("same bps version"));
  }
  const std::uint16_t later = kProtocolVersion + 1;
  HelloAdmin hello;
  hello.capabilities = {later, static_cast<std::uint16_t>(later + 2), {}};
  const Refused refused = refused_in(answer(frame(hello)));
  CHECK(refused.code == ErrorCode::protocol);
  CHECK_THAT(refused.message,
             EndsWith(std::to_string(kProtocolVersion)) &&
                 Contains("versions " + std::to_string(later) + " to " + std::to_string(later + 2)));
  CHECK(refused.capabilities == accepting_capabilities());
  Bytes crc = frame(heartbeat(1));
  crc.back() ^= std::byte{1};
  CHECK_THAT(refused_in(answer(crc)).message, Contains("CRC"));
  Bytes large = frame(heartbeat(1));
  put(large, 8, std::uint32_t{0xffffffff});
  CHECK_THAT(refused_in(answer(large)).message, Contains("4294967295"));

  CHECK(answer(bytes_of("GET / HTTP/1.1\r\nHost: x\r\n\r\n")).empty());
  // A bps program with TLS knows a frame when it sees one.
  CHECK_THAT(refused_in(answer(bytes_of(std::string_view("\x16\x03\x01\x02\x00\x01\x00", 7)))).message,
             Contains("TLS"));
  CHECK(answer(pattern(1000, 5)).empty());
}

TEST_CASE("who sends a bad frame hears why behind what was queued for him") {
  Victim victim;
  victim.victim().at_message = [&](Message&, auto) { victim.victim().send(heartbeat(9)); };
  Bytes bytes = frame(heartbeat(1));
  const Bytes first = frame(heartbeat(9));
  Bytes crc = frame(heartbeat(2));
  crc.back() ^= std::byte{1};
  bytes.insert(bytes.end(), crc.begin(), crc.end());
  victim.raw->send(bytes);
  CHECK(victim.expect_closed().code == ErrorCode::protocol);
  REQUIRE(victim.heard.size() > first.size());
  const auto rest = victim.heard.begin() + static_cast<std::ptrdiff_t>(first.size());
  CHECK(std::equal(first.begin(), first.end(), victim.heard.begin()));
  CHECK_THAT(refused_in({rest, victim.heard.end()}).message, Contains("CRC"));
}

TEST_CASE("a bad frame behind a payload that is still queued gets no last word") {
  Victim victim;
  const Bytes payload = pattern(16 * 1024 * 1024, 1);  // more than the kernel takes
  victim.victim().send(push_pull(1), payload, 1);      // which shm may copy at once; the next has to wait
  victim.victim().send(push_pull(2), payload, 2);
  Bytes crc = frame(heartbeat(1));
  crc.back() ^= std::byte{1};
  victim.raw->send(crc);
  REQUIRE(victim.fabric->run_until([&] { return victim.victim().closed == 1; }, kLimit));
  CHECK(std::count(victim.victim().sent.begin(), victim.victim().sent.end(), 2) == 0);
  CHECK(victim.victim().end.code == ErrorCode::protocol);
}

TEST_CASE("the owner may destroy the connection when it hears of the bad frame") {
  Victim victim;
  victim.victim().at_closed = [&] { victim.victim().destroy(); };
  Bytes crc = frame(heartbeat(1));
  crc.back() ^= std::byte{1};
  victim.raw->send(crc);
  REQUIRE(victim.fabric->run_until([&] { return victim.read_to_end(); }, kLimit));
  CHECK_THAT(refused_in(victim.heard).message, Contains("CRC"));
}

TEST_CASE("good frames before a bad one are delivered") {
  Victim victim;
  Bytes bytes = frame(heartbeat(1));
  const Bytes second = frame(push_pull(2), 100);
  bytes.insert(bytes.end(), second.begin(), second.end());
  const Bytes payload = pattern(100, 2);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  bytes.insert(bytes.end(), 50, std::byte{0xff});
  victim.raw->send(bytes);
  CHECK(victim.expect_closed().code == ErrorCode::protocol);
  REQUIRE(victim.victim().messages == 2);
  CHECK((victim.victim().received[1].payload == payload));
}

TEST_CASE("a frame may come byte by byte") {
  Victim victim;
  Bytes bytes = frame(push_pull(2), 30);
  const Bytes payload = pattern(30, 2);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  int sent = 0;
  for (const std::byte byte : bytes) {
    victim.raw->send({&byte, 1});
    ++sent;
    bool turned = false;
    victim.fabric->loop().post([&] { turned = true; });
    REQUIRE(victim.fabric->run_until([&] { return turned; }, kLimit));
  }
  REQUIRE(victim.fabric->run_until([&] { return victim.victim().messages == 1; }, kLimit));
  CHECK((victim.victim().received[0].payload == payload));
}

TEST_CASE("a frame that ends too early says where") {
  Bytes whole = frame(push_pull(1), 1000);
  const std::size_t header = whole.size() - kFramePrefixBytes;
  whole.resize(whole.size() + 1000);
  struct Cut {
    std::size_t bytes;
    std::string where;
  };
  for (const Cut& cut :
       {Cut{10, "frame prefix (10 of 24 bytes)"},
        Cut{kFramePrefixBytes + 5, "frame header (5 of " + std::to_string(header) + " bytes)"},
        Cut{kFramePrefixBytes + header, "payload (0 of 1000 bytes)"},
        Cut{whole.size() - 1, "payload (999 of 1000 bytes)"}}) {
    for (const bool reset : {false, true}) {
      INFO(cut.where << " reset " << reset);
      Victim victim;
      victim.raw->send(std::span(whole).first(cut.bytes));
      if (cut.bytes >= kFramePrefixBytes + header) {
        REQUIRE(victim.fabric->run_until([&] { return victim.victim().payload_calls == 1; }, kLimit));
      }
      if (reset) {
        int turns = 0;  // until the bytes have been read: a reset may overtake them
        const TimePoint then = victim.fabric->loop().now() + 250ms;
        REQUIRE(victim.fabric->run_until([&] { return ++turns > 100 && victim.fabric->loop().now() >= then; },
                                         kLimit));
        victim.raw->reset();
      } else {
        victim.raw.reset();
      }
      REQUIRE(victim.fabric->run_until([&] { return victim.victim().closed == 1; }, kLimit));
      CHECK(victim.victim().end.code == ErrorCode::peer_lost);
      CHECK_THAT(victim.victim().end.message, Contains("in the middle of a " + cut.where));
      if (reset && victim.fabric->has_resets())
        CHECK_THAT(victim.victim().end.message, Contains("reset by peer"));
      CHECK(victim.victim().messages == 0);
    }
  }
}

TEST_CASE("random bytes never do more than close the connection") {
  std::mt19937 random(11);
  for (int i = 0; i < 60; ++i) {
    INFO("case " << i);
    Victim victim;
    Bytes bytes = frame(heartbeat(1));
    const Bytes second = frame(push_pull(2), 64);
    bytes.insert(bytes.end(), second.begin(), second.end());
    const std::size_t headers = bytes.size();
    // Enough to complete any header that a changed length may claim.
    bytes.insert(bytes.end(), 2 * kMaxHelloHeaderBytes, std::byte{1});
    const std::size_t at = random() % headers;
    bytes[at] ^= static_cast<std::byte>(1 + random() % 255);
    victim.raw->send(bytes);
    const Error error = victim.expect_closed();
    CHECK(error.code == ErrorCode::protocol);
    CHECK(victim.victim().messages <= 1);
  }
}

TEST_CASE("a peer that does not read holds up nobody, and gets everything later") {
  Victim victim;
  End& sender = victim.victim();
  constexpr std::size_t kFrameBytes = 256 * 1024;
  constexpr std::uint64_t kFrames = 100;
  const Bytes payload = pattern(kFrameBytes, 1);
  std::uint64_t next = 0;
  const auto pump = [&] {
    while (next < kFrames && sender.connection->queued_bytes() < kFrameBytes) {
      sender.send(push_pull(next), payload, next + 1);
      ++next;
    }
  };
  sender.at_writable = pump;
  pump();
  REQUIRE(victim.fabric->run_until([&] { return sender.connection->queued_bytes() > 0; }, kLimit));
  for (std::uint64_t i = 0; i < 50; ++i) {
    victim.healthy.send(heartbeat(i));
    REQUIRE(
        victim.fabric->run_until([&] { return victim.ends[0].messages == static_cast<int>(i) + 1; }, kLimit));
  }
  CHECK(next < kFrames);
  CHECK(sender.connection->queued_bytes() < 2 * kFrameBytes + 4096);
  std::size_t got = 0;
  REQUIRE(victim.fabric->run_until(
      [&] {
        got += victim.raw->receive(kFrameBytes).size();
        return sender.sent.size() == kFrames;
      },
      kLimit));
  CHECK(got > (kFrames - 40) * kFrameBytes);
  for (std::uint64_t i = 0; i < kFrames; ++i)
    REQUIRE(sender.sent[i] == i + 1);
}

TEST_CASE("lingering gives up on a peer that does not read") {
  Victim victim;
  End& sender = victim.victim();
  const Bytes payload = pattern(32 * 1024 * 1024, 1);
  sender.send(push_pull(1), payload);
  sender.connection->close_after_flush(30ms);
  sender.destroy();
  REQUIRE(victim.fabric->run_until(
      [&] {
        victim.raw->receive(4096);
        return victim.raw->is_closed_by_peer();
      },
      kLimit));
}

}  // namespace
}  // namespace bps::conformance

#include "proto/transport/stream/frame_reader.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "proto/wire/codec.h"

namespace bps {
namespace {

using Bytes = std::vector<std::byte>;
using Event = FrameReader::Event;

Bytes frame(const Message& message, const Bytes& payload = {}) {
  Encoder encoder;
  const auto encoded = encoder.encode(message, payload.size());
  Bytes bytes(encoded.begin(), encoded.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

Bytes random_bytes(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(random());
  return bytes;
}

// As a socket with `available` bytes would: fills the targets in order. Returns what was read.
std::size_t read_into(FrameReader& reader, std::span<const std::byte> available) {
  FrameReader::Targets targets;
  const std::size_t count = reader.prepare(targets);
  std::size_t done = 0;
  for (std::size_t i = 0; i < count && done < available.size(); ++i) {
    REQUIRE(targets[i].iov_len > 0);
    const std::size_t bytes = std::min(targets[i].iov_len, available.size() - done);
    std::memcpy(targets[i].iov_base, available.data() + done, bytes);
    done += bytes;
  }
  REQUIRE(done > 0);
  reader.commit(done);
  return done;
}

TEST_CASE("frames come out whole however the stream is cut") {
  std::mt19937 random(3);
  for (int run = 0; run < 30; ++run) {
    Bytes stream;
    std::vector<Bytes> payloads;
    for (std::uint64_t i = 0; i < 40; ++i) {
      const std::size_t most = random() % 4 == 0 ? 300'000 : 3'000;
      payloads.push_back(random() % 3 == 0 ? Bytes{}
                                           : random_bytes(random() % most, static_cast<std::uint32_t>(i)));
      const Bytes one = frame(Heartbeat{i}, payloads.back());
      stream.insert(stream.end(), one.begin(), one.end());
    }
    FrameReader reader;
    Bytes destination;
    std::size_t at = 0;
    std::uint64_t next = 0;
    const std::size_t most = std::size_t{1} << (1 + run % 19);
    while (next < payloads.size()) {
      switch (reader.next()) {
        case Event::need_bytes: {
          REQUIRE(at < stream.size());
          const std::size_t here = std::min(stream.size() - at, 1 + random() % most);
          at += read_into(reader, std::span(stream).subspan(at, here));
          break;
        }
        case Event::payload:
          REQUIRE(reader.payload_bytes() == payloads[next].size());
          destination.assign(reader.payload_bytes(), std::byte{0});
          reader.set_destination(next % 5 == 4 ? nullptr : destination.data());
          break;
        case Event::message:
          REQUIRE(std::get<Heartbeat>(reader.message()).sequence == next);
          if (next % 5 == 4) {
            REQUIRE(reader.payload().empty());
          } else {
            REQUIRE(reader.payload().size() == payloads[next].size());
            REQUIRE((payloads[next].empty() || destination == payloads[next]));
          }
          ++next;
          break;
        case Event::error: FAIL(reader.error().message);
        default: FAIL("a kind of frame that was not sent");
      }
    }
    CHECK(at == stream.size());
    CHECK(reader.next() == Event::need_bytes);
    CHECK(reader.position().empty());
  }
}

TEST_CASE("between large payloads only a little is read that must be copied") {
  FrameReader reader;
  const Bytes payload = random_bytes(256 * 1024, 1);
  const Bytes one = frame(Heartbeat{1}, payload);
  Bytes destination(payload.size());
  FrameReader::Targets targets;
  std::size_t at = read_into(reader, std::span(one).first(1000));
  REQUIRE(reader.next() == Event::payload);
  reader.set_destination(destination.data());
  REQUIRE(reader.next() == Event::need_bytes);
  REQUIRE(reader.prepare(targets) == 2);
  CHECK(targets[0].iov_len == one.size() - at);
  CHECK(targets[1].iov_len <= 4096);
  at += read_into(reader, std::span(one).subspan(at));
  REQUIRE(at == one.size());
  REQUIRE(reader.next() == Event::message);
  CHECK(destination == payload);
  REQUIRE(reader.next() == Event::need_bytes);
  REQUIRE(reader.prepare(targets) == 1);
  CHECK(targets[0].iov_len <= 4096);
}

TEST_CASE("small frames are read many at a time") {
  FrameReader reader;
  FrameReader::Targets targets;
  REQUIRE(reader.prepare(targets) == 1);
  CHECK(targets[0].iov_len >= 64 * 1024);
}

TEST_CASE("a claimed header length costs memory only as its bytes arrive") {
  FrameReader reader(kMaxControlHeaderBytes);
  Bytes prefix(kFramePrefixBytes);
  const Bytes header = random_bytes(10 * 1024 * 1024, 1);
  write_prefix(std::span<std::byte, kFramePrefixBytes>(prefix.data(), kFramePrefixBytes), header, 0);
  read_into(reader, prefix);
  CHECK(reader.next() == Event::need_bytes);
  FrameReader::Targets targets;
  REQUIRE(reader.prepare(targets) == 1);
  CHECK(targets[0].iov_len <= 64 * 1024);
  std::size_t at = 0;
  while (at < header.size()) {
    at += read_into(reader, std::span(header).subspan(at));
    if (at < header.size()) REQUIRE(reader.next() == Event::need_bytes);
    REQUIRE(reader.next() != Event::message);
  }
  CHECK(reader.next() == Event::error);
  CHECK(reader.error().code == ErrorCode::protocol);
  CHECK(reader.next() == Event::error);
}

TEST_CASE("positions name what is missing") {
  const Bytes one = frame(Heartbeat{1}, random_bytes(100, 1));
  const std::size_t header = one.size() - kFramePrefixBytes - 100;
  FrameReader reader;
  CHECK(reader.position().empty());
  read_into(reader, std::span(one).first(7));
  CHECK(reader.next() == Event::need_bytes);
  CHECK(reader.position() == "in the middle of a frame prefix (7 of 24 bytes)");
  read_into(reader, std::span(one).subspan(7, 20));
  CHECK(reader.next() == Event::need_bytes);
  CHECK(reader.position() == "in the middle of a frame header (3 of " + std::to_string(header) + " bytes)");
  read_into(reader, std::span(one).subspan(27, one.size() - 27 - 40));
  REQUIRE(reader.next() == Event::payload);
  reader.set_destination(nullptr);
  CHECK(reader.next() == Event::need_bytes);
  CHECK(reader.position() == "in the middle of a payload (60 of 100 bytes)");
}

// `frame` as a program of another version would send it.
Bytes of_version(Bytes frame, std::uint16_t version) {
  write_prefix(std::span(frame).first<kFramePrefixBytes>(), std::span(frame).subspan(kFramePrefixBytes), 0, 0,
               version);
  return frame;
}

TEST_CASE("a refusal may be of another version, and nothing else") {
  const std::uint16_t later = kProtocolVersion + 1;
  Refused refused{ErrorCode::protocol, "no", ""};
  refused.capabilities = {later, later, {}};
  for (const bool over : {false, true}) {
    FrameReader reader;
    if (over) reader.end_handshake(kMaxControlHeaderBytes);
    read_into(reader, frame(refused));
    CHECK(reader.next() == Event::message);
    CHECK(reader.version() == kProtocolVersion);
    read_into(reader, of_version(frame(Heartbeat{1}), later));
    CHECK(reader.next() == Event::error);
    CHECK_THAT(reader.error().message, Catch::Contains("version " + std::to_string(later)));
  }
  FrameReader reader;
  read_into(reader, of_version(frame(Welcome{}), later));
  CHECK(reader.next() == Event::error);
}

HelloLane hello_of(std::uint16_t lowest, std::uint16_t highest) {
  HelloLane hello{.job_run = JobRun{1}, .incarnation = Incarnation{1}, .server_incarnation = Incarnation{1}};
  hello.capabilities = {lowest, highest, {}};
  return hello;
}

TEST_CASE("the version in use is the highest that both speak") {
  FrameReader reader;
  CHECK(reader.version() == kProtocolVersion);
  read_into(reader, frame(hello_of(kProtocolVersion, UINT16_MAX)));
  REQUIRE(reader.next() == Event::message);
  CHECK(reader.version() == kProtocolVersion);
}

// "[next]": also as a program of the next version, where the lowest one is another.
TEST_CASE("after the hello of a worker of the lowest version, that version is in use", "[next]") {
  const std::uint16_t lowest = kLowestWorkerVersion;
  const auto another = static_cast<std::uint16_t>(lowest + 1);
  FrameReader first;
  read_into(first, frame(hello_of(lowest, lowest)));
  REQUIRE(first.next() == Event::message);
  FrameReader reader = first.take();
  CHECK(reader.version() == lowest);
  reader.end_handshake(kMaxLaneHeaderBytes);
  read_into(reader, of_version(frame(Heartbeat{1}), lowest));
  REQUIRE(reader.next() == Event::message);
  read_into(reader, frame(hello_of(kProtocolVersion, kProtocolVersion)));  // too late
  REQUIRE(reader.next() == Event::message);
  CHECK(reader.version() == lowest);
  read_into(reader, of_version(frame(Heartbeat{1}), another));
  CHECK(reader.next() == Event::error);
}

TEST_CASE("scheduler, servers and bpsctl are of one version", "[next]") {
  const auto before = static_cast<std::uint16_t>(kProtocolVersion - 1);
  HelloServer server{.host = "h", .data = {"h", 1}, .shards = 1};
  HelloAdmin admin;
  server.capabilities = admin.capabilities = {before, before, {}};
  for (const Message& hello : {Message(server), Message(admin)}) {
    FrameReader reader;
    read_into(reader, frame(hello));
    REQUIRE(reader.next() == Event::error);
    CHECK_THAT(reader.error().message,
               Catch::EndsWith("version " + std::to_string(before) + ", this side speaks version " +
                               std::to_string(kProtocolVersion)));
  }
}

// As a transport that lends payloads would: `frame` with flags, and with `bytes` behind its header.
Bytes flagged(const Bytes& frame, std::uint16_t flags, const Bytes& bytes, std::uint64_t payload_bytes) {
  Bytes result = frame;
  result.insert(result.end(), bytes.begin(), bytes.end());
  write_prefix(std::span(result).first<kFramePrefixBytes>(), std::span(result).subspan(kFramePrefixBytes),
               payload_bytes, flags);
  return result;
}

TEST_CASE("lent payloads and records come out whole however the stream is cut, where they are allowed") {
  const Bytes reference = random_bytes(kFrameReferenceBytes, 1);
  const Bytes record = random_bytes(40, 2);
  Bytes stream = flagged(frame(Heartbeat{1}), kFrameLent, reference, 5000);
  {
    FrameReader reader(kMaxHelloHeaderBytes, kFrameRecord);
    Bytes later = flagged(Bytes(kFramePrefixBytes), kFrameRecord, record, 0);
    write_prefix(std::span(later).first<kFramePrefixBytes>(), record, 0, kFrameRecord, kProtocolVersion + 1);
    read_into(reader, later);
    CHECK(reader.next() == Event::record);
  }
  for (const Bytes& more :
       {flagged(Bytes(kFramePrefixBytes), kFrameRecord, record, 0), frame(Heartbeat{2}, Bytes(100))})
    stream.insert(stream.end(), more.begin(), more.end());
  for (std::size_t piece = 1; piece < stream.size(); piece += 1 + piece / 8) {
    FrameReader reader(kMaxHelloHeaderBytes, kFrameLent | kFrameRecord);
    std::vector<Event> events;
    for (std::size_t at = 0; events.size() < 4;) {
      const Event event = reader.next();
      if (event == Event::need_bytes) {
        at += read_into(reader, std::span(stream).subspan(at, std::min(piece, stream.size() - at)));
        continue;
      }
      events.push_back(event);
      if (event == Event::lent) {
        CHECK(std::get<Heartbeat>(reader.message()).sequence == 1);
        CHECK(reader.payload_bytes() == 5000);
        CHECK(std::equal(reference.begin(), reference.end(), reader.reference().begin()));
      } else if (event == Event::record) {
        CHECK((Bytes(reader.record().begin(), reader.record().end()) == record));
      } else if (event == Event::payload) {
        CHECK(reader.payload_bytes() == 100);
        reader.set_destination(nullptr);
      }
    }
    CHECK(events == std::vector{Event::lent, Event::record, Event::payload, Event::message});
  }
}

TEST_CASE("flags are refused where they are not allowed, mixed, or make no sense") {
  const auto refusal = [](const Bytes& bytes, std::uint16_t allowed) {
    FrameReader reader(kMaxHelloHeaderBytes, allowed);
    read_into(reader, bytes);
    REQUIRE(reader.next() == Event::error);
    return reader.error().message;
  };
  constexpr std::uint16_t kBoth = kFrameLent | kFrameRecord;
  const Bytes reference(kFrameReferenceBytes);
  const Bytes none(kFramePrefixBytes);
  const Bytes message = frame(Heartbeat{1});
  CHECK_THAT(refusal(flagged(message, kFrameLent, reference, 8), 0), Catch::Contains("flags 0x0001"));
  CHECK_THAT(refusal(flagged(none, kFrameRecord, reference, 0), kFrameLent), Catch::Contains("flags 0x0002"));
  CHECK_THAT(refusal(flagged(message, kBoth, reference, 8), kBoth), Catch::Contains("flags 0x0003"));
  CHECK_THAT(refusal(flagged(none, kFrameRecord, reference, 1), kBoth), Catch::Contains("has a payload"));
  CHECK_THAT(refusal(flagged(message, kFrameLent, reference, 0), kBoth), Catch::Contains("no payload"));
  CHECK_THAT(refusal(flagged(none, kFrameLent, reference, 8), kBoth), Catch::Contains("no message"));
  CHECK_FALSE(refusal(flagged(message, kFrameLent, Bytes(kFrameReferenceBytes - 1), 8), kBoth).empty());
  const Bytes crc(kFrameChecksumBytes);
  CHECK_THAT(refusal(flagged(message, kFrameChecksum, crc, 8), kBoth), Catch::Contains("flags 0x0004"));
  CHECK_THAT(refusal(flagged(message, kFrameChecksum, Bytes(4, std::byte{1}), 0), kFrameChecksum),
             Catch::Contains("a payload of 0 bytes is damaged"));
  CHECK_THAT(refusal(flagged(none, kFrameChecksum, crc, 8), kFrameChecksum), Catch::Contains("no message"));
}

// As TCP sends it with --checksum.
Bytes checked(const Message& message, const Bytes& payload) {
  const std::uint32_t crc = crc32c(0, payload);
  const auto crc_bytes = std::as_bytes(std::span(&crc, 1));
  Bytes bytes =
      flagged(frame(message), kFrameChecksum, Bytes(crc_bytes.begin(), crc_bytes.end()), payload.size());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

TEST_CASE("a payload with a checksum comes out whole however the stream is cut, dropped or not") {
  const Bytes payload = random_bytes(30'000, 5);
  Bytes stream = checked(Heartbeat{1}, payload);
  for (const Bytes& more :
       {frame(Heartbeat{2}, payload), checked(Heartbeat{3}, {}), checked(Heartbeat{4}, payload)})
    stream.insert(stream.end(), more.begin(), more.end());
  for (std::size_t piece = 1; piece < stream.size(); piece += 1 + piece) {
    for (const bool drop : {false, true}) {
      FrameReader reader(kMaxHelloHeaderBytes, kFrameChecksum);
      Bytes destination(payload.size());
      std::uint64_t messages = 0;
      for (std::size_t at = 0; messages < 4;) {
        const Event event = reader.next();
        if (event == Event::need_bytes) {
          at += read_into(reader, std::span(stream).subspan(at, std::min(piece, stream.size() - at)));
        } else if (event == Event::payload) {
          REQUIRE(reader.sees_checksums());
          std::fill(destination.begin(), destination.end(), std::byte{0});
          reader.set_destination(drop ? nullptr : destination.data());
        } else {
          REQUIRE(event == Event::message);
          CHECK(std::get<Heartbeat>(reader.message()).sequence == ++messages);
          CHECK((drop || destination == payload));
        }
      }
    }
  }
}

TEST_CASE("a payload that is not what its checksum says is never told") {
  const Bytes good = checked(Heartbeat{1}, random_bytes(300, 6));
  for (std::size_t i = good.size() - 300; i < good.size(); ++i) {
    Bytes bad = good;
    bad[i] ^= std::byte{1};
    FrameReader reader(kMaxHelloHeaderBytes, kFrameChecksum);
    read_into(reader, bad);
    REQUIRE(reader.next() == Event::payload);
    Bytes destination(300);
    reader.set_destination(i % 2 == 0 ? destination.data() : nullptr);
    REQUIRE(reader.next() == Event::error);
    CHECK_THAT(reader.error().message, Catch::Contains("a payload of 300 bytes is damaged"));
    CHECK(reader.error().code == ErrorCode::protocol);
    CHECK(reader.next() == Event::error);
  }
}

TEST_CASE("golden bytes: a frame with a checksum") {
  Bytes payload;
  for (const char c : std::string("123456789"))
    payload.push_back(static_cast<std::byte>(c));
  const Bytes bytes = checked(Credit{23, 0}, payload);
  CHECK(bytes[6] == std::byte{4});
  // The check value of CRC32C.
  CHECK((Bytes(bytes.end() - 13, bytes.end() - 9) ==
         Bytes{std::byte{0x83}, std::byte{0x92}, std::byte{0x06}, std::byte{0xe3}}));
}

TEST_CASE("a reader that is taken goes on elsewhere, and leaves its message readable") {
  Bytes stream = frame(Refused{ErrorCode::protocol, "first", ""});
  const Bytes second = frame(Heartbeat{2}, random_bytes(1000, 2));
  stream.insert(stream.end(), second.begin(), second.end());
  FrameReader reader;
  read_into(reader, std::span(stream).first(stream.size() - 500));
  REQUIRE(reader.next() == Event::message);
  FrameReader other = reader.take();
  CHECK(std::get<Refused>(reader.message()).message == "first");
  REQUIRE(other.next() == Event::payload);
  Bytes destination(1000);
  other.set_destination(destination.data());
  FrameReader third = other.take();
  REQUIRE(third.next() == Event::need_bytes);
  read_into(third, std::span(stream).last(500));
  REQUIRE(third.next() == Event::message);
  CHECK(std::get<Heartbeat>(third.message()).sequence == 2);
  CHECK(destination == random_bytes(1000, 2));
}

}  // namespace
}  // namespace bps

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

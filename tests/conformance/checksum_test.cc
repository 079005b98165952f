// Payloads with their CRC32C: damaged ones are never told, and who is sent checksums sends them back.
#include "proto/wire/bytes.h"
#include "proto/wire/codec.h"
#include "proto/wire/frame.h"
#include "tests/conformance/support.h"
#include "tests/conformance/tcp_fabric.h"

namespace bps::conformance {
namespace {

using Bytes = std::vector<std::byte>;
using Catch::Contains;

// As PROTOCOL.md says it, section 2.
Bytes checked_frame(const Message& message, const Bytes& payload) {
  Encoder encoder;
  const auto plain = encoder.encode(message, payload.size());
  Bytes bytes(plain.begin(), plain.end());
  bytes.resize(bytes.size() + kFrameChecksumBytes);
  store(bytes.data() + plain.size(), crc32c(0, payload));
  write_prefix(std::span(bytes).first<kFramePrefixBytes>(), std::span(bytes).subspan(kFramePrefixBytes),
               payload.size(), kFrameChecksum);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

struct Listening {
  Listening() {
    auto made = fabric.transport().listen(fabric.loop(), fabric.any_endpoint(),
                                          [this](auto accepted) { server.attach(std::move(accepted)); });
    REQUIRE(made.ok());
    listener = std::move(made).value();
    raw = fabric.raw_connect(listener->endpoint());
    REQUIRE(fabric.run_until([&] { return server.connection != nullptr; }, kLimit));
  }
  Bytes heard(std::size_t count) {
    Bytes bytes;
    REQUIRE(fabric.run_until(
        [&] {
          const Bytes more = raw->receive(count - bytes.size());
          bytes.insert(bytes.end(), more.begin(), more.end());
          return bytes.size() == count;
        },
        kLimit));
    return bytes;
  }

  TcpFabric fabric;  // without --checksum
  End server;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<RawPeer> raw;
};

TEST_CASE("who is sent checksums sends them, too") {
  Listening world;
  const Bytes payload = pattern(1000, 1);
  world.raw->send(checked_frame(heartbeat(1), {}));
  REQUIRE(world.fabric.run_until([&] { return world.server.messages == 1; }, kLimit));
  world.server.send(push_pull(2), payload);
  const Bytes expected = checked_frame(push_pull(2), payload);
  CHECK((world.heard(expected.size()) == expected));
}

TEST_CASE("a flipped bit in a payload costs the connection, before anybody is told of the message") {
  const Bytes payload = pattern(300'000, 1);
  const Bytes good = checked_frame(push_pull(2), payload);
  for (const std::size_t back : {std::size_t{1}, std::size_t{5000}, payload.size()}) {
    for (const bool wanted : {true, false}) {
      Listening world;
      world.server.discard = !wanted;
      Bytes bad = good;
      bad[bad.size() - back] ^= std::byte{0x10};
      world.raw->send(checked_frame(heartbeat(1), {}));
      world.raw->send(bad);
      REQUIRE(world.fabric.run_until([&] { return world.server.closed == 1; }, kLimit));
      CHECK(world.server.messages == 1);
      CHECK(world.server.end.code == ErrorCode::protocol);
      CHECK_THAT(world.server.end.message, Contains(world.server.connection->peer()) &&
                                               Contains("a payload of 300000 bytes is damaged"));
    }
  }
}

}  // namespace
}  // namespace bps::conformance

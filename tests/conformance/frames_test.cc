// What is sent arrives: all of it, in order, where the receiver said.
#include <algorithm>

#include "tests/conformance/support.h"

namespace bps::conformance {
namespace {

TEST_CASE("frames of every size come back as they were sent") {
  const auto fabric = make_fabric();
  Pair pair(*fabric);
  pair.connect_and_wait();
  pair.server.keep = false;
  std::vector<std::byte> echo;
  pair.server.at_message = [&](Message& message, std::span<std::byte> payload) {
    echo.assign(payload.begin(), payload.end());
    pair.server.send(message, echo);
  };
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{7}, std::size_t{8}, std::size_t{23},
        std::size_t{24}, std::size_t{25}, std::size_t{4095}, std::size_t{4096}, std::size_t{4097},
        std::size_t{65535}, std::size_t{65536}, std::size_t{65537}, std::size_t{262144}, std::size_t{1048579},
        std::size_t{kMaxPayloadBytes}}) {
    if (bytes > fabric->largest_payload()) continue;
    INFO(bytes << " bytes");
    const auto payload = pattern(bytes, bytes);
    pair.client.received.clear();
    pair.client.send(push_pull(bytes), payload);
    REQUIRE(fabric->run_until([&] { return !pair.client.received.empty(); }, kLimit));
    CHECK(pair.client.received[0].number == bytes);
    CHECK((pair.client.received[0].payload == payload));
  }
  CHECK(pair.server.closed + pair.client.closed == 0);
}

TEST_CASE("many small frames arrive once and in order") {
  const auto fabric = make_fabric();
  Pair pair(*fabric);
  pair.connect();
  constexpr std::uint64_t kFrames = 20'000;
  std::uint64_t expected = 0;
  pair.server.keep = false;
  pair.server.at_message = [&](Message& message, std::span<std::byte>) {
    REQUIRE(number_of(message) == expected);
    ++expected;
  };
  for (std::uint64_t i = 0; i < kFrames; ++i)
    pair.client.send(heartbeat(i));
  REQUIRE(fabric->run_until([&] { return expected == kFrames; }, kLimit));
  CHECK(pair.client.connection->queued_bytes() == 0);
}

TEST_CASE("big and small frames in both directions at once") {
  const auto fabric = make_fabric();
  Pair pair(*fabric);
  pair.connect_and_wait();
  std::mt19937 random(7);
  constexpr std::uint64_t kFrames = 300;
  std::vector<std::vector<std::byte>> payloads;
  for (std::uint64_t i = 0; i < kFrames; ++i) {
    const std::size_t most = random() % 10 == 0 ? 600'000 : random() % 2 == 0 ? 5'000 : 40;
    payloads.push_back(pattern(random() % (std::min(most, fabric->largest_payload()) + 1), i));
    pair.client.send(push_pull(i), payloads.back(), i + 1);
    pair.server.send(push_pull(i), payloads.back(), i + 1);
  }
  REQUIRE(fabric->run_until(
      [&] {
        return pair.client.messages == kFrames && pair.server.messages == kFrames &&
               pair.client.sent.size() == kFrames && pair.server.sent.size() == kFrames;
      },
      kLimit));
  for (End* end : {&pair.client, &pair.server}) {
    for (std::uint64_t i = 0; i < kFrames; ++i) {
      REQUIRE(end->received[i].number == i);
      REQUIRE((end->received[i].payload == payloads[i]));
    }
    auto cookies = end->sent;
    std::sort(cookies.begin(), cookies.end());
    for (std::uint64_t i = 0; i < kFrames; ++i)
      REQUIRE(cookies[i] == i + 1);
  }
}

TEST_CASE("a payload that nobody wants is dropped and the next frame is whole") {
  const auto fabric = make_fabric();
  Pair pair(*fabric);
  pair.connect_and_wait();
  pair.server.discard = true;
  pair.server.at_message = [&](Message& message, std::span<std::byte> payload) {
    REQUIRE(payload.empty());
    pair.server.discard = number_of(message) % 2 == 1;
    pair.server.at_message = nullptr;
  };
  const auto big = pattern(300'000, 1);
  const auto small = pattern(500, 2);
  pair.client.send(push_pull(0), big);
  pair.client.send(push_pull(1), small);
  pair.client.send(heartbeat(2));
  REQUIRE(fabric->run_until([&] { return pair.server.messages == 3; }, kLimit));
  CHECK(pair.server.received[0].payload.empty());
  CHECK((pair.server.received[1].payload == small));
  CHECK(pair.server.received[2].number == 2);
  CHECK(pair.server.payload_calls == 2);
}

TEST_CASE("a large header passes where it is allowed") {
  const auto fabric = make_fabric();
  Pair pair(*fabric);
  pair.connect_and_wait();
  pair.server.connection->end_handshake(kMaxControlHeaderBytes);
  Declare declare;
  declare.request = 5;
  for (std::uint32_t i = 0; i < kMaxTensorsPerDeclare; ++i) {
    declare.tensors.push_back({"layer" + std::to_string(i) + std::string(300, 'x'), DType::f32, 1000, 0});
  }
  std::size_t tensors = 0;
  pair.server.at_message = [&](Message& message, std::span<std::byte>) {
    if (const auto* got = std::get_if<Declare>(&message)) tensors = got->tensors.size();
  };
  pair.client.send(declare);
  pair.client.send(heartbeat(1));
  REQUIRE(fabric->run_until([&] { return pair.server.messages == 2; }, kLimit));
  CHECK(tensors == kMaxTensorsPerDeclare);
}

TEST_CASE("frames queued before the connection is there, and before start, are sent") {
  const auto fabric = make_fabric();
  Pair pair(*fabric, /*start_server=*/false);
  auto connection = fabric->transport().connect(fabric->loop(), pair.listener->endpoint(), kLimit);
  connection->send(heartbeat(1), {}, 1);
  pair.client.connection = std::move(connection);
  REQUIRE(fabric->run_until([&] { return pair.server.connection != nullptr; }, kLimit));
  pair.client.connection->start(pair.client);
  pair.settle();
  CHECK(pair.server.messages == 0);
  pair.server.connection->start(pair.server);
  REQUIRE(
      fabric->run_until([&] { return pair.server.messages == 1 && pair.client.sent.size() == 1; }, kLimit));
}

TEST_CASE("a sender that follows on_writable keeps its queue short and everything arrives") {
  const auto fabric = make_fabric();
  Pair pair(*fabric);
  constexpr std::size_t kFrameBytes = 64 * 1024;
  constexpr std::size_t kQueueBytes = 128 * 1024;
  const std::uint64_t frames =
      std::min<std::size_t>(fabric->largest_payload(), 16 * 1024 * 1024) / kFrameBytes * 2;
  const auto payload = pattern(kFrameBytes, 3);
  std::uint64_t next = 0;
  std::size_t longest = 0;
  const auto pump = [&] {
    while (next < frames && pair.client.connection->queued_bytes() < kQueueBytes) {
      pair.client.send(push_pull(next), payload, next + 1);
      ++next;
      longest = std::max(longest, pair.client.connection->queued_bytes());
    }
  };
  pair.client.at_writable = pump;
  pair.server.keep = false;
  pair.connect();
  REQUIRE(fabric->run_until([&] { return pair.server.messages == static_cast<int>(frames); }, kLimit));
  CHECK(longest < kQueueBytes + kFrameBytes + 4096);
  REQUIRE(fabric->run_until([&] { return pair.client.sent.size() == frames; }, kLimit));
}

TEST_CASE("a sender that keeps almost nothing queued is called whenever its queue is empty") {
  const auto fabric = make_fabric();
  Pair pair(*fabric);
  std::uint64_t next = 0;
  pair.client.at_writable = [&] {
    if (next < 200) pair.client.send(heartbeat(next++));
  };
  pair.connect();
  REQUIRE(fabric->run_until([&] { return pair.server.messages == 200; }, kLimit));
}

TEST_CASE("a connection moves to another loop with what it has read") {
  const auto fabric = make_fabric();
  Pair pair(*fabric);
  End moved;
  std::unique_ptr<Connection> on_other_loop;
  std::string peer;
  pair.server.at_message = [&](Message& message, std::span<std::byte>) {
    peer = pair.server.connection->peer();
    on_other_loop = pair.server.connection->move_to(fabric->other_loop());
    CHECK(number_of(message) == 1);  // still readable
    pair.server.gone = true;
    fabric->other_loop().post([&] { moved.attach(std::move(on_other_loop)); });
  };
  pair.connect();
  const auto payload = pattern(100'000, 9);
  pair.client.send(heartbeat(1));
  for (std::uint64_t i = 2; i < 40; ++i)
    pair.client.send(heartbeat(i));
  pair.client.send(push_pull(40), payload);
  REQUIRE(fabric->run_until([&] { return moved.messages == 39; }, kLimit));
  CHECK(pair.server.messages == 1);
  for (std::uint64_t i = 0; i < 39; ++i)
    CHECK(moved.received[i].number == i + 2);
  CHECK((moved.received[38].payload == payload));
  moved.send(heartbeat(99));
  REQUIRE(fabric->run_until([&] { return pair.client.messages == 1; }, kLimit));
  CHECK(moved.connection->peer() == peer);
  pair.client.close();
  REQUIRE(fabric->run_until([&] { return moved.closed == 1; }, kLimit));
}

TEST_CASE("frames that wait to be sent move along") {
  const auto fabric = make_fabric();
  Pair pair(*fabric);
  End moved;
  const auto payload = pattern(200'000, 4);
  std::unique_ptr<Connection> on_other_loop;
  pair.server.at_message = [&](Message&, std::span<std::byte>) {
    pair.server.send(push_pull(1), payload, 5);
    on_other_loop = pair.server.connection->move_to(fabric->other_loop());
    pair.server.gone = true;
    fabric->other_loop().post([&] { moved.attach(std::move(on_other_loop)); });
  };
  pair.connect();
  pair.client.send(heartbeat(1));
  REQUIRE(fabric->run_until([&] { return pair.client.messages == 1 && !moved.sent.empty(); }, kLimit));
  CHECK((pair.client.received[0].payload == payload));
  CHECK(moved.sent == std::vector<std::uint64_t>{5});
}

}  // namespace
}  // namespace bps::conformance

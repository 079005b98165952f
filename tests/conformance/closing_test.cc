// Connections end: once, with the reason, and nothing is touched afterwards.
#include "tests/conformance/support.h"

namespace bps::conformance {
namespace {

enum class Where { payload, message, sent, writable, closed };
enum class How { close, destroy };

void close_inside(Where where, How how) {
  const auto fabric = make_fabric();
  Pair pair(*fabric);
  End& end = pair.server;
  bool reached = false;
  const auto act = [&] {
    reached = true;
    if (how == How::close) {
      end.close();
    } else {
      end.destroy();
    }
  };
  const auto payload = pattern(200'000, 1);
  switch (where) {
    case Where::payload: end.at_payload = act; break;
    case Where::message: end.at_message = [&](Message&, std::span<std::byte>) { act(); }; break;
    case Where::sent: end.at_sent = act; break;
    case Where::writable: end.at_writable = act; break;
    case Where::closed: end.at_closed = act; break;
  }
  if (where == Where::sent) {
    end.at_message = [&](Message&, std::span<std::byte>) {
      if (!end.sent.empty()) return;
      for (std::uint64_t i = 1; i <= 3; ++i)
        end.send(push_pull(i), payload, i);
    };
  }
  pair.connect();
  for (std::uint64_t i = 0; i < 3; ++i)
    pair.client.send(push_pull(i), payload, i + 1);
  if (where == Where::closed) {
    REQUIRE(fabric->run_until([&] { return end.messages == 3; }, kLimit));
    pair.client.close();
  }
  REQUIRE(fabric->run_until([&] { return reached; }, kLimit));
  if (where != Where::closed) REQUIRE(fabric->run_until([&] { return pair.client.closed == 1; }, kLimit));
  pair.settle();
  CHECK(end.closed == (where == Where::closed ? 1 : 0));
}

TEST_CASE("a handler may close or destroy its connection in any callback") {
  for (const How how : {How::close, How::destroy}) {
    for (const Where where : {Where::payload, Where::message, Where::sent, Where::writable, Where::closed}) {
      DYNAMIC_SECTION("callback " << static_cast<int>(where)
                                  << (how == How::close ? ", close" : ", destroy")) {
        close_inside(where, how);
      }
    }
  }
}

TEST_CASE("memory that was sent is free as soon as the connection is closed") {
  const auto fabric = make_fabric();
  Pair pair(*fabric);
  pair.connect_and_wait();
  auto payload = std::make_unique<std::vector<std::byte>>(pattern(4'000'000, 1));
  pair.client.send(push_pull(1), *payload, 1);
  pair.client.close();
  payload.reset();
  REQUIRE(fabric->run_until([&] { return pair.server.closed == 1; }, kLimit));
  CHECK(pair.server.end.code == ErrorCode::peer_lost);
  CHECK(pair.client.sent.empty());
}

TEST_CASE("a close between frames is told to the peer once, with the reason") {
  const auto fabric = make_fabric();
  Pair pair(*fabric);
  pair.connect_and_wait();
  pair.client.send(heartbeat(1));
  REQUIRE(fabric->run_until([&] { return pair.server.messages == 1; }, kLimit));
  pair.client.close();
  pair.client.connection->close();
  pair.client.connection->send(heartbeat(2), {}, 0);
  CHECK(pair.client.connection->queued_bytes() == 0);
  REQUIRE(fabric->run_until([&] { return pair.server.closed == 1; }, kLimit));
  CHECK(pair.server.end.code == ErrorCode::peer_lost);
  CHECK_FALSE(pair.server.end.message.empty());
  pair.settle();
  CHECK(pair.server.messages == 1);
}

TEST_CASE("closing right after connect, before anything happened, is quiet") {
  const auto fabric = make_fabric();
  Pair pair(*fabric);
  pair.connect();
  pair.client.send(heartbeat(1), {}, 1);
  pair.client.destroy();
  pair.settle();
  CHECK(pair.client.closed + pair.client.writable == 0);
}

TEST_CASE("a connect that is refused says to whom and why") {
  const auto fabric = make_fabric();
  End client;
  const Endpoint dead = fabric->dead_endpoint();
  client.attach(fabric->transport().connect(fabric->loop(), dead, kLimit));
  client.send(heartbeat(1), {}, 1);
  CHECK(client.closed == 0);
  REQUIRE(fabric->run_until([&] { return client.closed == 1; }, kLimit));
  CHECK(client.end.code == ErrorCode::unreachable);
  CHECK_THAT(client.end.message, Catch::Contains("connect to " + to_string(dead)) &&
                                     Catch::Contains("refused", Catch::CaseSensitive::No));
  CHECK(client.sent.empty());
  CHECK(client.writable == 0);
}

TEST_CASE("a failure to connect waits for start") {
  const auto fabric = make_fabric();
  End client;
  client.connection = fabric->transport().connect(fabric->loop(), fabric->dead_endpoint(), kLimit);
  bool later = false;
  fabric->loop().after(20ms, [&] { later = true; });
  REQUIRE(fabric->run_until([&] { return later; }, kLimit));
  CHECK(client.closed == 0);
  client.connection->start(client);
  CHECK(client.closed == 0);
  REQUIRE(fabric->run_until([&] { return client.closed == 1; }, kLimit));
  CHECK(client.end.code == ErrorCode::unreachable);
}

TEST_CASE("after its listener is gone nobody connects any more, but connections stay") {
  const auto fabric = make_fabric();
  Pair pair(*fabric);
  pair.connect_and_wait();
  const Endpoint endpoint = pair.listener->endpoint();
  pair.listener.reset();
  End late;
  late.attach(fabric->transport().connect(fabric->loop(), endpoint, kLimit));
  REQUIRE(fabric->run_until([&] { return late.closed == 1; }, kLimit));
  CHECK(late.end.code == ErrorCode::unreachable);
  pair.client.send(heartbeat(1));
  REQUIRE(fabric->run_until([&] { return pair.server.messages == 1; }, kLimit));
}

TEST_CASE("the last words arrive, even while the peer is sending") {
  const auto fabric = make_fabric();
  Pair pair(*fabric);
  const auto payload = pattern(1'000'000, 1);
  bool refused = false;
  pair.server.at_payload = [&] {
    pair.server.discard = true;
    pair.server.connection->send(Refused{ErrorCode::configuration, "no", "go away"});
    pair.server.connection->close_after_flush(kLimit);
    pair.server.destroy();
  };
  pair.client.at_message = [&](Message& message, std::span<std::byte>) {
    const auto* words = std::get_if<Refused>(&message);
    refused = words != nullptr && words->message == "no";
  };
  pair.connect();
  for (std::uint64_t i = 1; i <= 3; ++i)
    pair.client.send(push_pull(i), payload, i);
  REQUIRE(fabric->run_until([&] { return pair.client.closed == 1; }, kLimit));
  CHECK(refused);
}

TEST_CASE("connections are independent and many at once are accepted") {
  const auto fabric = make_fabric();
  std::vector<std::unique_ptr<End>> servers;
  auto listener = fabric->transport().listen(fabric->loop(), fabric->any_endpoint(), [&](auto accepted) {
    servers.push_back(std::make_unique<End>());
    servers.back()->attach(std::move(accepted));
  });
  REQUIRE(listener.ok());
  std::vector<std::unique_ptr<End>> clients;
  for (std::uint64_t i = 0; i < 100; ++i) {
    clients.push_back(std::make_unique<End>());
    clients.back()->attach(fabric->transport().connect(fabric->loop(), (*listener)->endpoint(), 20s));
    clients.back()->send(heartbeat(i));
  }
  const auto arrived = [&] {
    int count = 0;
    for (const auto& server : servers)
      count += server->messages;
    return count;
  };
  REQUIRE(fabric->run_until([&] { return arrived() == 100; }, kLimit));
  for (std::size_t i = 0; i < 100; i += 2)
    clients[i]->close();
  const auto closed = [&] {
    int count = 0;
    for (const auto& server : servers)
      count += server->closed;
    return count;
  };
  REQUIRE(fabric->run_until([&] { return closed() == 50; }, kLimit));
  for (std::size_t i = 1; i < 100; i += 2)
    clients[i]->send(heartbeat(i));
  REQUIRE(fabric->run_until([&] { return arrived() == 150; }, kLimit));
  CHECK(closed() == 50);
}

}  // namespace
}  // namespace bps::conformance

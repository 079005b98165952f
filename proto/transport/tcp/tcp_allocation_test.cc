// In steady state a frame costs no allocation, from send() on one side to on_message() on the other.
#include "proto/transport/stream/echo_allocations.h"
#if BPS_COUNTS_ALLOCATIONS

#include <catch2/catch.hpp>
#include <chrono>
#include <vector>

#include "proto/transport/tcp/tcp_transport.h"

namespace bps {
namespace {

// Sends back every frame with the payload it came with.
struct Echo : ConnectionHandler {
  explicit Echo(std::size_t bytes) : memory(bytes) {}
  std::byte* on_payload(const Message&, std::uint64_t) override { return memory.data(); }
  void on_message(Message& message, std::span<std::byte> payload) override {
    ++messages;
    if (messages < limit) connection->send(message, payload, 7);
  }
  void on_closed(const Error& error) override { FAIL(error.message); }

  std::unique_ptr<Connection> connection;
  std::vector<std::byte> memory;
  int messages = 0;
  int limit = 1'000'000;
};

std::uint64_t allocations_of_echo(std::size_t bytes) {
  AsioLoop loop;
  TcpTransport transport;
  Echo server(bytes);
  Echo client(bytes);
  auto listener = transport.listen(loop, Endpoint{}, [&](std::unique_ptr<Connection> accepted) {
    server.connection = std::move(accepted);
    server.connection->start(server);
  });
  REQUIRE(listener.ok());
  client.connection = transport.connect(loop, (*listener)->endpoint(), std::chrono::seconds(5));
  client.connection->start(client);
  for (int i = 0; i < 4; ++i)
    client.connection->send(PushPull{}, client.memory, 1);
  return testing::allocations_of_echoes(loop, client.messages);
}

TEST_CASE("a frame costs no allocation in steady state") {
  CHECK(allocations_of_echo(0) == 0);
  CHECK(allocations_of_echo(4096) == 0);
  CHECK(allocations_of_echo(256 * 1024) == 0);
  CHECK(testing::allocations > 0);
}

}  // namespace
}  // namespace bps

#endif  // BPS_COUNTS_ALLOCATIONS

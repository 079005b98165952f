// In steady state a frame costs no allocation, from send() on one side to on_lent() or on_message() on the
// other, and back to on_sent().
#include "proto/transport/stream/echo_allocations.h"
#if BPS_COUNTS_ALLOCATIONS

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <vector>

#include "proto/transport/rdma/fake/fake_fabric.h"
#include "proto/transport/rdma/rdma_transport.h"

namespace bps {
namespace {

// Sends every frame back, out of its own memory. Reads what is lent in place, and keeps the last few of it.
struct Echo : ConnectionHandler {
  Echo(std::span<std::byte> memory_in, const Region* region_in) : memory(memory_in), region(region_in) {}
  std::byte* on_payload(const Message&, std::uint64_t) override { return memory.data(); }
  bool on_lent(Message& message, LentPayload& payload) override {
    if (reads_in_place) {
      std::swap(held[static_cast<std::size_t>(messages) % held.size()], payload);
      payload.reset();
      echo(message);
    }
    return reads_in_place;
  }
  void on_message(Message& message, std::span<std::byte>) override { echo(message); }
  void on_closed(const Error& error) override { FAIL(error.message); }
  void echo(Message& message) {
    ++messages;
    connection->send(message, {memory, region}, 7);
  }

  std::unique_ptr<Connection> connection;
  std::span<std::byte> memory;
  const Region* region;
  bool reads_in_place = true;
  std::array<LentPayload, 3> held;
  int messages = 0;
};

struct Case {
  std::size_t bytes;
  bool in_region;
  bool reads_in_place;
};

std::uint64_t allocations_of_echo(const Case& what) {
  AsioLoop loop;
  RdmaOptions options;
  options.probe_interval = std::chrono::hours(1);  // timers allocate, and a busy machine may take a second
  RdmaTransport transport(std::make_shared<FakeFabric>(), options);
  const auto region = transport.allocate(2 * what.bytes + 1).value();
  std::vector<std::byte> ordinary(2 * what.bytes + 1);
  const std::span<std::byte> memory = what.in_region ? region->bytes() : std::span(ordinary);
  Echo server(memory.first(what.bytes), region.get());
  Echo client(memory.subspan(what.bytes, what.bytes), region.get());
  server.reads_in_place = client.reads_in_place = what.reads_in_place;
  auto listener = transport.listen(loop, {FakeFabric::kHost, 0}, [&](std::unique_ptr<Connection> accepted) {
    server.connection = std::move(accepted);
    server.connection->start(server);
  });
  REQUIRE(listener.ok());
  client.connection = transport.connect(loop, (*listener)->endpoint(), std::chrono::seconds(5));
  client.connection->start(client);
  for (int i = 0; i < 4; ++i)
    client.connection->send(PushPull{}, {client.memory, client.region}, 1);
  return testing::allocations_of_echoes(loop, client.messages);
}

TEST_CASE("a frame costs no allocation in steady state, however its payload is read") {
  // The last is larger than the slab.
  for (const std::size_t bytes : {0u, 1024u, 4096u, 64u * 1024, 256u * 1024, 1100u * 1024}) {
    for (const bool in_region : {true, false}) {
      for (const bool reads_in_place : {true, false}) {
        INFO(bytes << " bytes, region " << in_region << ", in place " << reads_in_place);
        CHECK(allocations_of_echo({bytes, in_region, reads_in_place}) == 0);
      }
    }
  }
  CHECK(testing::allocations > 0);
}

}  // namespace
}  // namespace bps

#endif  // BPS_COUNTS_ALLOCATIONS

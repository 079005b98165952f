// For tests of transports that lend payloads: what a frame allocates that goes to and fro, from send() on one
// side to on_lent() or on_message() on the other, and back to on_sent(). As echo_allocations.h, which it is
// part of: in one source file of a test program only.
#pragma once

#include "proto/transport/stream/echo_allocations.h"
#if BPS_COUNTS_ALLOCATIONS

#include <array>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "proto/transport/transport.h"

namespace bps::testing {

// Sends every frame back, out of its own memory. Reads what is lent in place, and keeps the last few of it.
struct LendingEcho : ConnectionHandler {
  LendingEcho(std::span<std::byte> memory_in, const Region* region_in)
      : memory(memory_in), region(region_in) {}
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

struct LendingCase {
  std::size_t bytes;
  bool in_region;
  bool reads_in_place;
};

inline std::uint64_t allocations_of_lending_echoes(AsioLoop& loop, Transport& transport,
                                                   const Endpoint& endpoint, const LendingCase& what) {
  const auto region = transport.allocate(2 * what.bytes + 1).value();
  std::vector<std::byte> ordinary(2 * what.bytes + 1);
  const std::span<std::byte> memory = what.in_region ? region->bytes() : std::span(ordinary);
  LendingEcho server(memory.first(what.bytes), region.get());
  LendingEcho client(memory.subspan(what.bytes, what.bytes), region.get());
  server.reads_in_place = client.reads_in_place = what.reads_in_place;
  auto listener = transport.listen(loop, endpoint, [&](std::unique_ptr<Connection> accepted) {
    server.connection = std::move(accepted);
    server.connection->start(server);
  });
  REQUIRE(listener.ok());
  client.connection = transport.connect(loop, (*listener)->endpoint(), std::chrono::seconds(5));
  client.connection->start(client);
  for (int i = 0; i < 4; ++i)
    client.connection->send(PushPull{}, {client.memory, client.region}, 1);
  return allocations_of_echoes(loop, client.messages);
}

// `count` gives the allocations of a case.
template <class Count>
void check_lending_echoes(std::initializer_list<std::size_t> sizes, Count count) {
  for (const std::size_t bytes : sizes) {
    for (const bool in_region : {true, false}) {
      for (const bool reads_in_place : {true, false}) {
        INFO(bytes << " bytes, region " << in_region << ", in place " << reads_in_place);
        CHECK(count(LendingCase{bytes, in_region, reads_in_place}) == 0);
      }
    }
  }
  CHECK(allocations > 0);
}

}  // namespace bps::testing

#endif  // BPS_COUNTS_ALLOCATIONS

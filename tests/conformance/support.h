// A pair of connected handlers for the suite, and payloads whose bytes tell where they belong.
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/conformance/fabric.h"

namespace bps::conformance {

using namespace std::chrono_literals;
constexpr Duration kLimit = 30s;

inline std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> data(bytes);
  std::uint64_t word = seed * 0x9e3779b97f4a7c15 + 1;
  for (std::size_t i = 0; i < bytes; i += sizeof word) {
    word = word * 6364136223846793005 + 1442695040888963407;
    const std::uint64_t mixed = word ^ (word >> 29);
    std::memcpy(data.data() + i, &mixed, std::min(sizeof mixed, bytes - i));
  }
  return data;
}

inline Message push_pull(std::uint64_t round) {
  PushPull message;
  message.job_run = JobRun{7};
  message.round = Round{round};
  return message;
}

inline Message heartbeat(std::uint64_t sequence) { return Heartbeat{sequence}; }

inline std::uint64_t number_of(const Message& message) {
  if (const auto* push = std::get_if<PushPull>(&message)) return push->round.value;
  if (const auto* beat = std::get_if<Heartbeat>(&message)) return beat->sequence;
  return UINT64_MAX;
}

// Calls of the connection under test are made through this, so that a callback inside one is noticed.
struct CallGuard {
  explicit CallGuard(int& depth_in) : depth(depth_in) { ++depth; }
  ~CallGuard() { --depth; }
  int& depth;
};

// One end of a connection. Payloads land between guard bytes in memory of their own.
class End final : public ConnectionHandler {
 public:
  struct Received {
    std::uint64_t number;
    std::vector<std::byte> payload;
  };

  std::byte* on_payload(const Message& message, std::uint64_t bytes) override {
    check_callback();
    ++payload_calls;
    announced = number_of(message);
    std::byte* target = nullptr;
    if (!discard) {
      landing.assign(bytes + 2 * kGuardBytes, kGuard);
      target = landing.data() + kGuardBytes;
    }
    if (at_payload) at_payload();
    return target;
  }

  void on_message(Message& message, std::span<std::byte> payload) override {
    check_callback();
    if (!payload.empty()) {
      REQUIRE(announced == number_of(message));
      REQUIRE(payload.data() == landing.data() + kGuardBytes);
      REQUIRE(payload.size() == landing.size() - 2 * kGuardBytes);
      for (std::size_t i = 0; i < kGuardBytes; ++i) {
        REQUIRE(landing[i] == kGuard);
        REQUIRE(landing[landing.size() - 1 - i] == kGuard);
      }
    }
    ++messages;
    if (keep) received.push_back({number_of(message), {payload.begin(), payload.end()}});
    if (at_message) at_message(message, payload);
  }

  bool on_lent(Message& message, LentPayload& payload) override {
    check_callback();
    ++offers;
    return at_lent && at_lent(message, payload);
  }

  void on_sent(std::uint64_t cookie) override {
    check_callback();
    sent.push_back(cookie);
    if (at_sent) at_sent();
  }

  void on_writable() override {
    check_callback();
    ++writable;
    if (at_writable) at_writable();
  }

  void on_closed(const Error& error) override {
    check_callback();
    ++closed;
    REQUIRE(closed == 1);
    end = error;
    if (at_closed) at_closed();
  }

  void send(const Message& message, const Payload& payload = {}, std::uint64_t cookie = 0) {
    const CallGuard guard(in_call);
    connection->send(message, payload, cookie);
  }
  void attach(std::unique_ptr<Connection> made) {
    const CallGuard guard(in_call);
    connection = std::move(made);
    connection->start(*this);
  }
  // No callback may come after this.
  void close() {
    const CallGuard guard(in_call);
    connection->close();
    gone = true;
  }
  void destroy() {
    gone = true;
    const CallGuard guard(in_call);
    connection.reset();
    landing = {};  // the address sanitizer sees who still writes here
  }

  std::unique_ptr<Connection> connection;
  std::vector<std::byte> landing;
  bool discard = false;
  bool keep = true;
  bool gone = false;
  int in_call = 0;
  std::uint64_t announced = 0;
  int payload_calls = 0;
  int offers = 0;  // of lent payloads
  int messages = 0;
  int writable = 0;
  int closed = 0;
  std::vector<Received> received;
  std::vector<std::uint64_t> sent;
  Error end;
  std::function<void()> at_payload, at_sent, at_writable, at_closed;
  std::function<void(Message&, std::span<std::byte>)> at_message;
  std::function<bool(Message&, LentPayload&)> at_lent;

 private:
  static constexpr std::size_t kGuardBytes = 64;
  static constexpr std::byte kGuard{0xa5};

  void check_callback() const {
    REQUIRE(in_call == 0);
    REQUIRE_FALSE(gone);
  }
};

// A listener and the two ends of one connection.
struct Pair {
  explicit Pair(Fabric& fabric_in, bool start_server = true) : fabric(fabric_in) {
    auto made = fabric.transport().listen(fabric.loop(), fabric.any_endpoint(),
                                          [this, start_server](std::unique_ptr<Connection> accepted) {
                                            if (server.connection) return;
                                            server.connection = std::move(accepted);
                                            if (start_server) server.connection->start(server);
                                          });
    REQUIRE(made.ok());
    listener = std::move(made).value();
  }
  void connect() { client.attach(fabric.transport().connect(fabric.loop(), listener->endpoint(), 20s)); }
  void connect_and_wait() {
    connect();
    REQUIRE(fabric.run_until([&] { return server.connection && client.writable > 0; }, kLimit));
  }
  // Until the loops have had time for whatever might still come.
  void settle() {
    int turns = 0;
    std::function<void()> turn = [&] {
      if (++turns < 50) fabric.loop().after(200us, turn);
    };
    fabric.loop().post(turn);
    REQUIRE(fabric.run_until([&] { return turns >= 50; }, kLimit));
  }

  Fabric& fabric;
  End server;
  End client;
  std::unique_ptr<Listener> listener;
};

}  // namespace bps::conformance

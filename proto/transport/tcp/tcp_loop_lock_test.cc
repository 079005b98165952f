// Connections on loops that share a lock: bytes move on several threads, callbacks come one after
// another, and who has the lock may send on any of them and close any of them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <random>
#include <vector>

#include "proto/base/loop/completion.h"
#include "proto/base/loop/loop_thread.h"
#include "proto/base/testing/run_on.h"
#include "proto/transport/tcp/tcp_transport.h"

namespace bps {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

using testing::run_on;
using testing::soon;

// Sends every frame back. On a thread of its own.
struct EchoServer {
  struct Guest final : ConnectionHandler {
    std::byte* on_payload(const Message&, std::uint64_t bytes) override {
      arriving.resize(bytes);
      return arriving.data();
    }
    void on_message(Message& message, std::span<std::byte>) override {
      Bytes& kept = sending[++cookie] = std::move(arriving);
      connection->send(message, kept, cookie);
    }
    void on_sent(std::uint64_t sent) override { sending.erase(sent); }
    void on_closed(const Error&) override {
      connection->close();
      sending.clear();
    }
    std::unique_ptr<Connection> connection;
    Bytes arriving;
    std::map<std::uint64_t, Bytes> sending;
    std::uint64_t cookie = 0;
  };

  explicit EchoServer(const TcpOptions& options) : transport(options) {
    auto started = LoopThread::start("bps-echo");
    REQUIRE(started.ok());
    thread = std::move(started).value();
    run_on(thread->loop(), [this] {
      auto opened =
          transport.listen(thread->loop(), Endpoint{}, [this](std::unique_ptr<Connection> accepted) {
            guests.push_back(std::make_unique<Guest>());
            guests.back()->connection = std::move(accepted);
            guests.back()->connection->start(*guests.back());
          });
      REQUIRE(opened.ok());
      listener = std::move(opened).value();
    });
  }
  ~EchoServer() {
    thread->stop();
    guests.clear();
    listener.reset();
  }

  TcpTransport transport;
  std::unique_ptr<LoopThread> thread;
  std::unique_ptr<Listener> listener;
  std::vector<std::unique_ptr<Guest>> guests;
};

// Its members are touched by who has the lock.
struct Peer final : ConnectionHandler {
  static constexpr std::size_t kMost = 200'000;

  Peer(AsioLoop& its_loop, const LoopLock& its_lock) : loop(its_loop), lock(its_lock) {}

  void open(Transport& transport, const Endpoint& endpoint) {
    connection = transport.connect(loop, endpoint, 20s);
    connection->start(*this);
  }
  void send() {
    if (connection == nullptr || sending.size() >= 4) return;
    Bytes& bytes = sending[++sent];
    bytes.assign(1 + (sent * 7919) % kMost, static_cast<std::byte>(sent * 31));
    PushPull push;
    push.round = Round{sent};
    connection->send(push, bytes, sent);
  }
  // At once: nothing of the connection touches its memory from now on. Or it goes on by itself, where nothing
  // is queued.
  void close(bool flushes = false) {
    if (flushes && sending.empty()) connection->close_after_flush(1s);
    connection.reset();
    for (auto& [number, bytes] : sending)
      std::fill(bytes.begin(), bytes.end(), std::byte{0xee});
    sending.clear();
    arriving = {};
    expected = sent;
  }

  std::byte* on_payload(const Message&, std::uint64_t bytes) override {
    right = right && lock.is_mine();
    arriving.assign(bytes, std::byte{});
    return arriving.data();
  }
  void on_message(Message& message, std::span<std::byte> payload) override {
    const std::uint64_t number = std::get<PushPull>(message).round.value;
    right = right && lock.is_mine() && number == ++expected &&
            payload.size() == 1 + (number * 7919) % kMost &&
            std::all_of(payload.begin(), payload.end(),
                        [&](std::byte byte) { return byte == static_cast<std::byte>(number * 31); });
    ++messages;
    next(*this);
  }
  void on_sent(std::uint64_t cookie) override { sending.erase(cookie); }
  void on_writable() override { send(); }
  void on_closed(const Error&) override { right = false; }

  AsioLoop& loop;
  const LoopLock& lock;
  std::function<void(Peer&)> next;
  std::unique_ptr<Connection> connection;
  Bytes arriving;
  std::map<std::uint64_t, Bytes> sending;
  std::uint64_t sent = 0, expected = 0;
  std::uint64_t messages = 0;
  bool right = true;
};

struct World {
  World(std::size_t peers, const TcpOptions& options) : transport(options) {
    for (int i = 0; i < 3; ++i) {
      auto started = LoopThread::start("bps-lock", lock);
      REQUIRE(started.ok());
      threads.push_back(std::move(started).value());
      if (i == 0) run_on(main(), [this] { lock->share(); });
    }
    for (std::size_t i = 0; i < peers; ++i)
      all.push_back(std::make_unique<Peer>(threads[i % threads.size()]->loop(), *lock));
  }
  ~World() {
    run_on(main(), [this] {
      for (const auto& peer : all)
        peer->close();
    });
    for (const auto& thread : threads)
      thread->stop();
  }
  AsioLoop& main() { return threads.front()->loop(); }
  Peer& any(const Peer& but) {
    while (true) {
      Peer& peer = *all[random() % all.size()];
      if (&peer != &but) return peer;
    }
  }

  const std::shared_ptr<LoopLock> lock = std::make_shared<LoopLock>();
  std::vector<std::unique_ptr<LoopThread>> threads;
  TcpTransport transport;
  std::vector<std::unique_ptr<Peer>> all;
  std::mt19937 random{7};
};

TEST_CASE("tcp, loop lock: what is sent from another loop arrives whole and in order") {
  TcpOptions options;
  options.checksum = GENERATE(false, true);
  EchoServer server(options);
  Completion<bool> over;
  std::uint64_t left = 6000;
  World world(6, options);
  for (const auto& peer : world.all) {
    peer->next = [&](Peer& one) {
      if (left == 0 || --left == 0) return (void)over.set(true);
      // Mostly into the middle of another one's system calls.
      world.any(one).send();
      one.send();
      one.send();
    };
  }
  run_on(world.main(), [&] {
    for (const auto& peer : world.all)
      peer->open(world.transport, server.listener->endpoint());
  });
  REQUIRE(over.wait_until(soon()));
  std::uint64_t fewest = UINT64_MAX;
  run_on(world.main(), [&] {
    for (const auto& peer : world.all)
      fewest = std::min(fewest, peer->right ? peer->messages : 0);
  });
  CHECK(fewest > 100);
}

TEST_CASE("tcp, loop lock: who closes a connection of another loop may free its memory at once") {
  TcpOptions options;
  options.checksum = GENERATE(false, true);
  EchoServer server(options);
  Completion<bool> over;
  std::uint64_t left = 4000, closed = 0;
  World world(6, options);
  for (const auto& peer : world.all) {
    peer->next = [&](Peer& one) {
      if (left == 0 || --left == 0) return (void)over.set(true);
      Peer& other = world.any(one);
      if (world.random() % 16 == 0) {
        ++closed;
        other.close(world.random() % 2 == 0);
        other.open(world.transport, server.listener->endpoint());
      } else {
        other.send();
      }
      one.send();
      if (world.random() % 64 == 0) {
        ++closed;
        one.close();  // inside its own callback
        one.open(world.transport, server.listener->endpoint());
      }
    };
  }
  run_on(world.main(), [&] {
    for (const auto& peer : world.all)
      peer->open(world.transport, server.listener->endpoint());
  });
  REQUIRE(over.wait_until(soon()));
  bool right = true;
  run_on(world.main(), [&] {
    for (const auto& peer : world.all)
      right = right && peer->right;
  });
  CHECK(right);
  CHECK(closed > 100);
}

}  // namespace
}  // namespace bps

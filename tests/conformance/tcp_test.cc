// What only TCP has: options, names, threads, file descriptors that run out.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/base/loop/completion.h"
#include "proto/base/loop/loop_thread.h"
#include "proto/base/testing/not_run.h"
#include "proto/transport/tcp/tcp_socket.h"
#include "tests/conformance/support.h"
#include "tests/conformance/tcp_fabric.h"

namespace bps::conformance {
namespace {

using Catch::Contains;

TEST_CASE("a port that is taken is an error that names it") {
  TcpFabric fabric;
  const auto ignore = [](std::unique_ptr<Connection>) {};
  auto first = fabric.transport().listen(fabric.loop(), fabric.any_endpoint(), ignore);
  REQUIRE(first.ok());
  const Endpoint endpoint = (*first)->endpoint();
  CHECK(endpoint.port != 0);
  auto second = fabric.transport().listen(fabric.loop(), endpoint, ignore);
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().code == ErrorCode::os);
  CHECK(second.error().message == "cannot listen on " + to_string(endpoint) + ": Address already in use");
  CHECK_FALSE(second.error().advice.empty());
  first.value().reset();
  CHECK(fabric.transport().listen(fabric.loop(), endpoint, ignore).ok());
}

TEST_CASE("a lost connection is named with its peer") {
  TcpFabric fabric;
  Pair pair(fabric);
  pair.connect_and_wait();
  pair.client.close();
  REQUIRE(fabric.run_until([&] { return pair.server.closed == 1; }, kLimit));
  CHECK(pair.server.end.message ==
        "connection to " + pair.server.connection->peer() + " lost: closed by the peer");
}

TEST_CASE("what has arrived and was not read yet shows: somebody who connects, a frame, the end") {
  TcpFabric fabric;
  Pair pair(fabric);
  CHECK_FALSE(pair.listener->has_input());
  pair.connect();
  REQUIRE(fabric.run_until([&] { return pair.listener->has_input() || pair.server.connection; }, kLimit));
  CHECK_FALSE(pair.server.connection);
  REQUIRE(fabric.run_until([&] { return pair.server.connection && pair.client.writable > 0; }, kLimit));
  CHECK_FALSE(pair.listener->has_input());
  pair.settle();
  const auto shows = [&] { return pair.server.connection->has_input(); };
  CHECK_FALSE(shows());
  pair.client.send(heartbeat(1));
  REQUIRE(fabric.run_until([&] { return shows() || pair.server.messages > 0; }, kLimit));
  CHECK(pair.server.messages == 0);
  REQUIRE(fabric.run_until([&] { return pair.server.messages == 1; }, kLimit));
  CHECK_FALSE(shows());
  pair.client.close();
  REQUIRE(fabric.run_until([&] { return shows() || pair.server.closed > 0; }, kLimit));
  CHECK(pair.server.closed == 0);
  REQUIRE(fabric.run_until([&] { return pair.server.closed == 1; }, kLimit));
  CHECK_FALSE(shows());
}

TEST_CASE("an owner is asked for more four times at a visit, then others have their turn") {
  TcpFabric fabric;
  Pair pair(fabric);
  pair.connect_and_wait();
  pair.settle();
  int asked = 0, asked_before_others = 0;
  pair.client.at_writable = [&] {
    if (++asked > 12) return;
    if (asked == 1) fabric.loop().post([&] { asked_before_others = asked; });
    pair.client.send(heartbeat(asked));
  };
  pair.client.send(heartbeat(0));
  REQUIRE(fabric.run_until([&] { return asked > 12; }, kLimit));
  CHECK(asked_before_others == 4);
  REQUIRE(fabric.run_until([&] { return pair.server.messages == 13; }, kLimit));
}

TEST_CASE("an address of another host cannot be listened on") {
  TcpFabric fabric;
  auto listener = fabric.transport().listen(fabric.loop(), Endpoint{"192.0.2.1", 0}, [](auto) {});
  REQUIRE_FALSE(listener.ok());
  CHECK_THAT(listener.error().message, Contains("192.0.2.1"));
}

TEST_CASE("host names are resolved without stopping the loop, IPv6 works") {
  TcpFabric fabric;
  for (const std::string host : {"localhost", "::1"}) {
    End server;
    auto listener = fabric.transport().listen(fabric.loop(), Endpoint{host, 0},
                                              [&](auto accepted) { server.attach(std::move(accepted)); });
    if (!listener.ok() && host == "::1") {
      testing::not_run("tcp over IPv6", listener.error().message);
      continue;
    }
    REQUIRE(listener.ok());
    End client;
    client.attach(fabric.transport().connect(fabric.loop(), (*listener)->endpoint(), 10s));
    client.send(heartbeat(1));
    REQUIRE(fabric.run_until([&] { return server.messages == 1; }, kLimit));
  }
}

TEST_CASE("a name that cannot exist is an error that says so") {
  TcpFabric fabric;
  End client;
  const std::string host = std::string(70, 'a') + ".invalid";
  client.attach(fabric.transport().connect(fabric.loop(), Endpoint{host, 1}, 20s));
  REQUIRE(fabric.run_until([&] { return client.closed == 1; }, kLimit));
  CHECK(client.end.code == ErrorCode::unreachable);
  CHECK_THAT(client.end.message, Contains("cannot resolve host " + host));
}

TEST_CASE("a connection may be gone before its name is resolved, and the loop too") {
  auto fabric = std::make_unique<TcpFabric>();
  for (int i = 0; i < 5; ++i) {
    End client;
    client.attach(fabric->transport().connect(fabric->loop(), Endpoint{"localhost", 1}, 20s));
    client.destroy();
    CHECK(client.closed == 0);
  }
  fabric.reset();
}

TEST_CASE("a connect that nobody answers ends at its timeout") {
  // A listener with a full queue drops further requests.
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress address = numeric_address(Endpoint{"127.0.0.1", 0}).at(0);
  REQUIRE(::bind(listener.get(), address.get(), address.length) == 0);
  REQUIRE(::listen(listener.get(), 0) == 0);
  REQUIRE(::getsockname(listener.get(), address.get(), &address.length) == 0);
  std::vector<UniqueFd> fillers;
  for (int i = 0; i < 4; ++i) {
    fillers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    (void)::connect(fillers.back().get(), address.get(), address.length);
  }
  TcpFabric fabric;
  End client;
  client.attach(fabric.transport().connect(fabric.loop(), endpoint_of(address), 50ms));
  REQUIRE(fabric.run_until([&] { return client.closed == 1; }, kLimit));
  CHECK(client.end.code == ErrorCode::unreachable);
  CHECK(client.end.message == "connect to " + to_string(endpoint_of(address)) + ": no answer within 50ms");
}

TEST_CASE("socket options are applied, and bad ones refused when the program starts") {
  TcpOptions options;
  options.congestion_control = "reno";
  REQUIRE(TcpTransport::check(options).ok());
  auto fd = make_socket(AF_INET, options);
  REQUIRE(fd.ok());
  char name[16] = {};
  socklen_t length = sizeof name;
  REQUIRE(::getsockopt(fd->get(), IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0);
  CHECK(std::string(name) == "reno");
  int value = 0;
  length = sizeof value;
  REQUIRE(::getsockopt(fd->get(), IPPROTO_TCP, TCP_NODELAY, &value, &length) == 0);
  CHECK(value == 1);
  REQUIRE(::getsockopt(fd->get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &value, &length) == 0);
  CHECK(value == static_cast<int>(options.notsent_lowat_bytes));

  options.congestion_control = "pigeon";
  const Status status = TcpTransport::check(options);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::configuration);
  CHECK_THAT(to_string(status.error()), Contains("congestion control pigeon"));
  TcpFabric fabric(options);
  CHECK_FALSE(fabric.transport().listen(fabric.loop(), fabric.any_endpoint(), [](auto) {}).ok());
  End client;
  client.attach(fabric.transport().connect(fabric.loop(), fabric.dead_endpoint(), kLimit));
  REQUIRE(fabric.run_until([&] { return client.closed == 1; }, kLimit));
  CHECK(client.end.code == ErrorCode::configuration);
}

TEST_CASE("out of file descriptors the listener waits, says so once, and goes on") {
  // The sanitizers need a file descriptor where they meet a type for the first time: nothing new while there
  // is none.
  TcpOptions options;
  options.log = Logger("tcp", LogTarget::to_callback([](auto, auto, auto) {}, LogLevel::warn));
  TcpFabric fabric(options);
  {
    const ExpectLog expect("warming up");
    options.log.warn("warming up");
  }
  std::vector<std::unique_ptr<Connection>> accepted;
  auto listener = fabric.transport().listen(fabric.loop(), fabric.any_endpoint(), [&](auto connection) {
    accepted.push_back(std::move(connection));
  });
  REQUIRE(listener.ok());
  const auto raw = fabric.raw_connect((*listener)->endpoint());
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 0;
  const ExpectLog expect("cannot accept connections on 127.0.0.1");
  const auto elapsed = [&, start = fabric.loop().now()] { return fabric.loop().now() - start; };
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  int turns = 0;
  const bool waited = fabric.run_until([&] { return ++turns > 20 && elapsed() > 250ms; }, kLimit);
  const std::size_t lines = expect.seen();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(waited);
  CHECK(lines == 1);
  CHECK(accepted.empty());
  REQUIRE(fabric.run_until([&] { return accepted.size() == 1; }, kLimit));
}

// Catch's assertions are for one thread: what happens on the loops is looked at when they have stopped.
struct ThreadEnd : ConnectionHandler {
  std::byte* on_payload(const Message&, std::uint64_t bytes) override {
    landing.resize(bytes);
    return landing.data();
  }
  void on_message(Message& message, std::span<std::byte> payload) override {
    ++messages;
    at_message(message, payload);
  }
  void on_sent(std::uint64_t) override { ++sent; }
  void on_closed(const Error& error) override { end = error; }
  void attach(std::unique_ptr<Connection> made) {
    connection = std::move(made);
    connection->start(*this);
  }

  std::unique_ptr<Connection> connection;
  std::vector<std::byte> landing;
  std::uint64_t messages = 0;
  std::uint64_t sent = 0;
  Error end;
  std::function<void(Message&, std::span<std::byte>)> at_message;
};

// What the thread sanitizer looks at.
TEST_CASE("loops on threads of their own, with a connection handed from one to the other") {
  constexpr std::uint64_t kFrames = 2000;
  const auto payload = pattern(20'000, 1);
  TcpTransport transport;
  ThreadEnd hello, lane, client;
  std::unique_ptr<Listener> listener;
  std::string trouble;
  auto acceptor = std::move(LoopThread::start("acceptor")).value();
  auto shard = std::move(LoopThread::start("shard")).value();
  auto worker = std::move(LoopThread::start("worker")).value();
  auto address = std::make_shared<Completion<Endpoint>>();
  auto done = std::make_shared<Completion<bool>>();

  lane.at_message = [&](Message& message, std::span<std::byte> bytes) {
    lane.connection->send(message, bytes, 1);  // the client waits for it before it sends the next
  };
  hello.at_message = [&](Message&, std::span<std::byte>) {
    auto moved = std::make_shared<std::unique_ptr<Connection>>(hello.connection->move_to(shard->loop()));
    shard->loop().post([&, moved] { lane.attach(std::move(*moved)); });
  };
  client.at_message = [&](Message& message, std::span<std::byte> bytes) {
    if (number_of(message) != client.messages || bytes.size() != payload.size() ||
        std::memcmp(bytes.data(), payload.data(), bytes.size()) != 0) {
      trouble = "answer " + std::to_string(client.messages) + " is wrong";
    }
    if (client.messages == kFrames || !trouble.empty()) return void(done->set(true));
    client.connection->send(push_pull(client.messages + 1), payload);
  };
  acceptor->loop().post([&] {
    auto made = transport.listen(acceptor->loop(), Endpoint{},
                                 [&](auto accepted) { hello.attach(std::move(accepted)); });
    if (made.ok()) listener = std::move(made).value();
    address->set(listener ? listener->endpoint() : Endpoint{});
  });
  REQUIRE(address->wait_until(std::chrono::steady_clock::now() + kLimit));
  worker->loop().post([&] {
    client.attach(transport.connect(worker->loop(), address->value(), 10s));
    client.connection->send(heartbeat(0));
    client.connection->send(push_pull(1), payload);
  });
  CHECK(done->wait_until(std::chrono::steady_clock::now() + kLimit));
  worker->stop();
  shard->stop();
  acceptor->stop();
  CHECK(trouble.empty());
  CHECK(client.messages == kFrames);
  CHECK(hello.messages == 1);
  CHECK(lane.messages == kFrames);
  CHECK(lane.sent <= kFrames);
  CHECK(client.end.message.empty());
  client.connection.reset();
  lane.connection.reset();
  hello.connection.reset();
  listener.reset();
}

}  // namespace
}  // namespace bps::conformance

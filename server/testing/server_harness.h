// A whole server on real sockets, with a scheduler and workers played by the test; everything on one loop.
#pragma once

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "proto/base/loop/asio_loop.h"
#include "proto/transport/shm/shm_transport.h"
#include "proto/transport/tcp/tcp_transport.h"
#include "proto/wire/shm_name.h"
#include "server/server.h"
#include "server/testing/job_harness.h"

namespace bps::server_test {

using namespace std::chrono_literals;

inline constexpr JobRun kRun{42};
inline constexpr std::uint64_t kMiB = 1 << 20;

// One end of a connection: keeps what it gets.
class Peer final : public ConnectionHandler {
 public:
  explicit Peer(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {
    connection_->end_handshake(kMaxControlHeaderBytes);
    connection_->start(*this);
  }

  std::byte* on_payload(const Message&, std::uint64_t bytes) override {
    payload.resize(bytes / sizeof(float));
    return reinterpret_cast<std::byte*>(payload.data());
  }
  bool on_lent(Message&, LentPayload& lent) override {
    is_copy = lent.scarce();
    return false;
  }
  void on_message(Message& message, std::span<std::byte>) override {
    if (!std::holds_alternative<Heartbeat>(message)) messages.push_back(message);
    ++frames;
  }
  void on_closed(const Error& error) override { closed = error; }

  Connection& connection() { return *connection_; }
  void close() { connection_->close(); }

  template <class T>
  const T* find() const {
    for (const Message& message : messages) {
      if (const T* found = std::get_if<T>(&message)) return found;
    }
    return nullptr;
  }

  std::vector<Message> messages;
  std::vector<float> payload;
  std::optional<bool> is_copy;  // of the last payload that was lent
  std::size_t frames = 0;
  std::optional<Error> closed;

 private:
  std::unique_ptr<Connection> connection_;
};

class World {
 public:
  explicit World(std::uint32_t shards = 2) : shards_(shards) {
    auto listening = transport.listen(loop, Endpoint{}, [this](std::unique_ptr<Connection> connection) {
      scheduler = std::make_unique<Peer>(std::move(connection));
    });
    REQUIRE(listening.ok());
    listener = std::move(listening).value();
    options.scheduler = listener->endpoint();
    options.memory_max = 64 * kMiB;
    options.host = "here";
    options.heartbeat_timeout = 10min;  // the scheduler says nothing of itself, however long a test takes
  }
  ~World() {
    workers.clear();
    server.reset();
    scheduler.reset();
    listener.reset();
  }

  void until(const std::function<bool()>& done) {
    const TimePoint deadline = loop.now() + 60s;
    while (!done()) {
      REQUIRE(loop.now() < deadline);
      loop.run_once(loop.now() + 50ms);
    }
  }

  Status start() {
    Server::Callbacks callbacks;
    callbacks.registered = [this] { registered = true; };
    callbacks.stopped = [this](const Error& error) { stopped = error; };
    server = std::make_unique<Server>(loop, std::vector<EventLoop*>(shards_, &loop), transport, options,
                                      std::move(callbacks), log);
    return server->start();
  }

  Welcome welcome() const { return Welcome{term, incarnation, ServerId{5}, JobRun{}}; }

  void start_and_hear_hello() {
    REQUIRE(start().ok());
    until([&] { return scheduler != nullptr && scheduler->find<HelloServer>() != nullptr; });
  }

  // The server gets this Welcome, and is registered.
  void serve(const Welcome& with) {
    scheduler->connection().send(with);
    until([&] { return registered; });
    scheduler->messages.clear();
  }
  void serve() {
    start_and_hear_hello();
    serve(welcome());
  }

  // Sends and waits for the Ack.
  Error ask(Message message) {
    scheduler->messages.clear();
    scheduler->connection().send(message);
    until([&] { return scheduler->find<Ack>() != nullptr; });
    return scheduler->find<Ack>()->error;
  }

  Error open_job(JobRun run, std::uint32_t size) { return ask(testing::job_of(run, size)); }

  // One tensor, with a partition on each shard.
  static DeclareSlices slices(JobRun run, std::uint32_t tensor, std::uint32_t shards,
                              std::uint64_t elements) {
    DeclareSlices declare;
    declare.job_run = run;
    TensorSlices& entry = declare.tensors.emplace_back();
    entry.tensor = TensorId{tensor};
    entry.name = "weights";
    for (std::uint32_t i = 0; i < shards; ++i) {
      entry.partitions.push_back({PartitionId{tensor * 10 + i}, i, elements});
    }
    return declare;
  }
  Error declare(JobRun run, std::uint32_t tensor, std::uint64_t elements) {
    return ask(slices(run, tensor, shards_, elements));
  }

  HelloLane hello(JobRun run, std::uint32_t rank, std::uint32_t shard) const {
    HelloLane hello = testing::hello_of(run, rank);
    hello.server = ServerId{5};
    hello.server_incarnation = incarnation;
    hello.shard = shard;
    return hello;
  }

  Peer& connect(bool local = false) {
    workers.push_back(std::make_unique<Peer>(
        local ? shared_memory.connect(loop, shm_endpoint(server->endpoint().port, incarnation), 5s)
              : transport.connect(loop, server->endpoint(), 5s)));
    return *workers.back();
  }
  Peer& connect(const Message& first, bool local = false) {
    Peer& peer = connect(local);
    peer.connection().send(first);
    return peer;
  }

  Peer& lane(JobRun run, std::uint32_t rank, std::uint32_t shard, bool local = false) {
    Peer& peer = connect(hello(run, rank, shard), local);
    until([&] { return peer.find<Welcome>() != nullptr; });
    return peer;
  }

  static void push(Peer& peer, JobRun run, std::uint32_t partition, std::span<const float> values,
                   std::uint64_t round = 0, const Region* region = nullptr, DType dtype = DType::f32) {
    PushPull header;
    header.dtype = dtype;
    header.job_run = run;
    header.partition = PartitionId{partition};
    header.round = Round{round};
    header.count = kMaxTensorElements;  // all
    peer.connection().send(header, Payload(std::as_bytes(values), region), 1);
  }

  Error refusal(const Message& first) {
    Peer& peer = connect(first);
    until([&] { return peer.closed.has_value(); });
    const auto* refused = peer.find<Refused>();
    REQUIRE(refused != nullptr);
    return Error{refused->code, refused->message, refused->advice};
  }

  const std::uint32_t shards_;
  AsioLoop loop;
  TcpTransport transport;
  ShmTransport shared_memory;
  Logger log{"server",
             LogTarget::to_callback([](LogLevel, std::string_view, std::string_view) {}, LogLevel::debug)};
  const Term term{1, 99};
  const Incarnation incarnation{7};
  ServerOptions options;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Peer> scheduler;
  std::unique_ptr<Server> server;
  std::vector<std::unique_ptr<Peer>> workers;
  bool registered = false;
  std::optional<Error> stopped;
};

}  // namespace bps::server_test

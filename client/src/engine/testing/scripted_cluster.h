// For tests of the engine: a scheduler and servers that do exactly what the test says, on connections that
// record what was sent and deliver what they are told to, in virtual time.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/src/engine/client_engine.h"
#include "proto/base/loop/virtual_loop.h"
#include "proto/transport/transport.h"

namespace bps::testing {

struct SentFrame {
  Message message;
  std::vector<std::byte> payload;  // as it was when it was sent
  std::uint64_t cookie = 0;
};

// The test's end of a connection. Outlives the engine's.
struct Wire {
  Endpoint endpoint;
  EventLoop* loop = nullptr;             // that the connection lives on
  ConnectionHandler* handler = nullptr;  // null: closed by either side
  bool flushed = false;                  // by close_after_flush
  std::size_t queued_bytes = 0;          // what the engine is told
  std::size_t max_header_bytes = 0;
  std::unique_ptr<Message> arriving;
  std::deque<SentFrame> frames;       // not yet looked at
  std::function<void()> when_closed;  // by the engine: a server that lives takes back its loans then

  bool open() const { return handler != nullptr; }

  // The next frame that was sent, which must be a T.
  template <class T>
  T next(std::vector<std::byte>* payload = nullptr, std::uint64_t* cookie = nullptr) {
    if (frames.empty()) FAIL("nothing was sent to " + to_string(endpoint));
    SentFrame frame = std::move(frames.front());
    frames.pop_front();
    const T* message = std::get_if<T>(&frame.message);
    if (message == nullptr) FAIL(std::string("instead, the engine sent ") + name_of(frame.message));
    if (payload != nullptr) *payload = std::move(frame.payload);
    if (cookie != nullptr) *cookie = frame.cookie;
    return *message;
  }
  // The message is the connection's: gone with it.
  void deliver(Message message) {
    REQUIRE(open());
    arriving = std::make_unique<Message>(std::move(message));
    handler->on_message(*arriving, {});
  }
  // Whole: header, destination, message. False: the engine dropped the payload.
  bool deliver(Message message, const std::vector<std::byte>& payload) {
    std::byte* destination = begin(message, payload);
    if (open()) handler->on_message(message, {destination, destination == nullptr ? 0 : payload.size()});
    return destination != nullptr;
  }
  // Header and payload, but not the end of it.
  std::byte* begin(const Message& message, const std::vector<std::byte>& payload) {
    REQUIRE(open());
    std::byte* destination = handler->on_payload(message, payload.size());
    if (destination != nullptr) std::memcpy(destination, payload.data(), payload.size());
    return destination;
  }
  void sent(std::uint64_t cookie) {
    if (open()) handler->on_sent(cookie);
  }
  void break_with(ErrorCode code, std::string why) {
    REQUIRE(open());
    std::exchange(handler, nullptr)->on_closed(make_error(code, std::move(why)));
  }
};

class ScriptedConnection final : public Connection {
 public:
  explicit ScriptedConnection(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}
  ~ScriptedConnection() override {
    close();
    wire_->arriving.reset();
  }

  void start(ConnectionHandler& handler) override { wire_->handler = &handler; }
  void send(const Message& message, Payload payload, std::uint64_t cookie) override {
    wire_->frames.push_back({message, {payload.bytes.begin(), payload.bytes.end()}, cookie});
  }
  std::size_t queued_bytes() const override { return wire_->queued_bytes; }
  void end_handshake(std::size_t bytes) override { wire_->max_header_bytes = bytes; }
  void close() override {
    wire_->handler = nullptr;
    if (const auto told = std::exchange(wire_->when_closed, nullptr)) told();
  }
  void close_after_flush(Duration) override {
    wire_->flushed = true;
    wire_->handler = nullptr;
  }
  std::string peer() const override { return to_string(wire_->endpoint); }
  std::unique_ptr<Connection> move_to(EventLoop&) override { return nullptr; }

 private:
  std::shared_ptr<Wire> wire_;
};

class ScriptedTransport final : public Transport {
 public:
  Result<std::unique_ptr<Listener>> listen(EventLoop&, const Endpoint&, Accepted) override {
    return make_error(ErrorCode::internal, "clients do not listen");
  }
  std::unique_ptr<Connection> connect(EventLoop& loop, const Endpoint& endpoint, Duration) override {
    auto wire = std::make_shared<Wire>();
    wire->endpoint = endpoint;
    wire->loop = &loop;
    wires.push_back(wire);
    return std::make_unique<ScriptedConnection>(wire);
  }

  std::vector<std::shared_ptr<Wire>> wires;  // in order of connect()
};

inline std::vector<std::byte> bytes_of(std::size_t count, int value) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

// How an operation ended, and how often.
struct Outcome {
  int ended = 0;
  Error error;
  std::uint32_t weight = 0;
};

inline constexpr std::size_t kSlice = 4096;  // bytes of a partition

// An engine, of rank 0 if not otherwise, and what surrounds it.
class ScriptedCluster {
  std::unique_ptr<VirtualLoop> own_loop_;

 public:
  static constexpr std::uint64_t kRun = 77;

  // What several engines in one test share.
  struct Shared {
    VirtualLoop* loop = nullptr;  // null: one of its own
    Transport* local = nullptr;
    DataPlane::MakeGroup make_group = {};
    MakeLaneLoops make_lane_loops = {};
  };
  explicit ScriptedCluster(ClientConfig config = default_config())
      : ScriptedCluster(std::move(config), Shared{}) {}
  ScriptedCluster(ClientConfig config, Shared shared)
      : own_loop_(shared.loop == nullptr ? std::make_unique<VirtualLoop>() : nullptr),
        loop(shared.loop == nullptr ? *own_loop_ : *shared.loop),
        engine(
            loop, transport, std::move(config),
            Logger("test", LogTarget::to_callback([](auto...) {}, LogLevel::off)), &shared_memory,
            [this] { return find_rdma(); }, shared.local, std::move(shared.make_group),
            std::move(shared.make_lane_loops)) {}

  static ClientConfig default_config() {
    ClientConfig config;
    config.scheduler = {"127.0.0.1", 4710};
    config.job = "job";
    config.world_size = 2;
    config.partition_bytes = kSlice;
    config.join_timeout = std::chrono::seconds(10);
    return config;
  }

  // The newest connection to a port.
  Wire& wire(std::uint16_t port) {
    for (auto i = transport.wires.rbegin(); i != transport.wires.rend(); ++i) {
      if ((*i)->endpoint.port == port) return **i;
    }
    FAIL("nobody connected to port " + std::to_string(port));
    throw 0;
  }
  Wire& scheduler() { return wire(4710); }
  Wire& lane(std::uint32_t index) { return wire(static_cast<std::uint16_t>(5000 + index)); }
  std::size_t connects(std::uint16_t port) const {
    return static_cast<std::size_t>(
        std::count_if(transport.wires.begin(), transport.wires.end(),
                      [port](const auto& w) { return w->endpoint.port == port; }));
  }

  JobStart job_start(std::uint32_t lanes) const {
    JobStart start;
    start.job_run = JobRun{kRun};
    start.generation = Generation{1};
    start.epoch = Epoch{3};
    start.partition_bytes = kSlice;
    start.members = members;
    for (std::uint32_t r = 0; r < 2 && members.empty(); ++r)
      start.members.push_back({Rank{r}, Incarnation{r + 10}, "host", r, 1, Rank{r}, 0});
    start.workers = start.host_workers = static_cast<std::uint32_t>(start.members.size());
    for (const Member& member : start.members)
      start.groups = start.groups || member.weight > 1;
    for (std::uint32_t i = 0; i < lanes; ++i) {
      start.lanes.push_back({ServerId{i + 1},
                             Incarnation{i + 100},
                             {"127.0.0.1", static_cast<std::uint16_t>(5000 + i)},
                             0,
                             server_host,
                             offers_rdma});
    }
    return start;
  }
  void welcome_worker() {
    scheduler().handler->on_writable();
    (void)scheduler().next<HelloWorker>();
    scheduler().deliver(Welcome{Term{1, 2}, Incarnation{10}, ServerId{}, JobRun{kRun}});
  }
  // Lanes are open, their hellos read.
  void join(std::uint32_t lanes) {
    bool joined = false;
    engine.join([&](Status status) { joined = status.ok(); });
    welcome_worker();
    scheduler().deliver(job_start(lanes));
    REQUIRE(joined);
    for (std::uint32_t i = 0; i < lanes; ++i)
      welcome_lane(i);
  }
  HelloLane welcome_lane(std::uint32_t index) {
    const auto hello = lane(index).next<HelloLane>();
    lane(index).deliver(Welcome{Term{1, 2}, Incarnation{10}, hello.server, JobRun{kRun}});
    return hello;
  }

  // f32 by default; partition i on owners[i].
  TensorId declare(const std::string& name, std::uint64_t bytes, std::vector<std::uint32_t> owners,
                   Mode mode = Mode::sync) {
    TensorDeclaration tensor;
    tensor.mode = mode;
    tensor.name = name;
    tensor.dtype = DType::u8;
    tensor.elements = bytes;
    TensorId id;
    engine.declare({tensor}, [&](Result<std::vector<TensorId>> ids) {
      REQUIRE(ids.ok());
      id = ids->at(0);
    });
    const auto request = scheduler().next<Declare>();
    Declared declared;
    declared.request = request.request;
    DeclaredTensor& answer = declared.tensors.emplace_back();
    answer.tensor = TensorId{next_tensor_++};
    answer.first_partition = PartitionId{next_partition_};
    for (const std::uint32_t owner : owners)
      answer.owners.push_back(LaneIndex{owner});
    next_partition_ += static_cast<std::uint32_t>(owners.size());
    scheduler().deliver(declared);
    return id;
  }

  Request::Done into(Outcome& operation) {
    return [&operation](Result<std::uint32_t> weight) {
      ++operation.ended;
      if (weight.ok()) {
        operation.weight = *weight;
      } else {
        operation.error = weight.error();
      }
    };
  }

  Aggregate answer(std::uint32_t partition, std::uint64_t round, std::uint64_t taken,
                   std::uint32_t weight = 2) const {
    Aggregate aggregate;
    aggregate.partition = PartitionId{partition};
    aggregate.round = Round{round};
    aggregate.epoch = Epoch{3};
    aggregate.generation = Generation{1};
    aggregate.weight = weight;
    aggregate.taken = taken;
    return aggregate;
  }

  VirtualLoop& loop;
  std::vector<Member> members;  // of the job; none: two
  ScriptedTransport transport;
  ScriptedTransport shared_memory, rdma;
  std::optional<Error> no_rdma;  // why this worker has none
  int rdma_asked = 0;            // how often
  bool offers_rdma = false;      // by servers
  std::string server_host;
  ClientEngine engine;

 private:
  Result<Transport*> find_rdma() {
    ++rdma_asked;
    if (no_rdma) return *no_rdma;
    return static_cast<Transport*>(&rdma);
  }

  std::uint32_t next_tensor_ = 0;
  std::uint32_t next_partition_ = 0;
};

}  // namespace bps::testing

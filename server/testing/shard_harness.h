// A shard with lanes whose connections are played by the test, callback by callback.
#pragma once

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "proto/base/loop/virtual_loop.h"
#include "server/shard/shard.h"
#include "server/testing/job_harness.h"

namespace bps::shard_test {

inline constexpr JobRun kRun{77};

struct Sent {
  Message message;
  std::vector<std::byte> payload;
  std::uint64_t cookie = 0;
  const Region* region = nullptr;
  bool in_region = false;
};

inline constexpr std::size_t kFrameBytes = 100;

// What the test sees of a connection; outlives it.
struct Wire {
  ConnectionHandler* handler = nullptr;
  std::vector<Sent> sent;         // without the first Credit
  std::uint64_t eager_limit = 0;  // what that says
  std::size_t queued = 0;         // what queued_bytes() says
  bool hold = false;              // payloads stay queued until the test releases them
  bool lends = false;             // payloads are handed over at once, and held by the peer
  bool stuck = false;             // the peer does not read: every frame stays queued
  bool closed = false;
};

class FakeConnection final : public Connection {
 public:
  explicit FakeConnection(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}
  ~FakeConnection() override { close(); }
  void start(ConnectionHandler& handler) override { wire_->handler = &handler; }
  void send(const Message& message, Payload payload, std::uint64_t cookie) override {
    wire_->sent.push_back({message,
                           {payload.bytes.begin(), payload.bytes.end()},
                           cookie,
                           payload.region,
                           payload.region != nullptr && payload.region->contains(payload.bytes)});
    if (wire_->hold || wire_->stuck) wire_->queued += payload.bytes.size();
    if (wire_->stuck) wire_->queued += kFrameBytes;
  }
  std::size_t queued_bytes() const override { return wire_->queued; }
  void end_handshake(std::size_t) override {}
  void close() override {
    wire_->closed = true;
    wire_->handler = nullptr;
  }
  void close_after_flush(Duration) override { close(); }
  std::string peer() const override { return "worker"; }
  std::unique_ptr<Connection> move_to(EventLoop&) override { return nullptr; }

 private:
  std::shared_ptr<Wire> wire_;
};

class World {
 public:
  explicit World(std::uint32_t workers, std::uint64_t budget = 1 << 20) : World(workers, budget, quiet()) {}
  World(std::uint32_t workers, std::uint64_t budget, const Logger& log)
      : World(testing::job_of(kRun, workers), budget, log) {}
  explicit World(const OpenJob& job, std::uint64_t budget = 1 << 20) : World(job, budget, quiet()) {}
  World(const OpenJob& job, std::uint64_t budget, const Logger& log)
      : shard(std::make_unique<Shard>(loop, ShardIndex{0}, budget, log)) {
    shard->open_job(job);
  }

  // Of one partition, both with this number.
  static TensorSlices tensor(std::uint32_t id, std::uint64_t elements) {
    TensorSlices tensor;
    tensor.tensor = TensorId{id};
    tensor.name = "t" + std::to_string(id);
    tensor.partitions.push_back({PartitionId{id}, 0, elements});
    return tensor;
  }
  void declare(std::uint32_t id, std::uint64_t elements, std::int32_t priority = 0) {
    TensorSlices declared = tensor(id, elements);
    declared.priority = priority;
    shard->declare(DeclareSlices{0, kRun, {}, false, {declared}});
  }
  // The same, of another server before.
  void move(std::uint32_t id, std::uint64_t elements, std::uint32_t epoch) {
    shard->declare(DeclareSlices{0, kRun, Epoch{epoch}, true, {tensor(id, elements)}});
  }

  std::shared_ptr<Wire> open(std::uint32_t rank, std::uint64_t session = 1,
                             std::uint32_t credit_report = 1 << 30) {
    HelloLane hello = testing::hello_of(kRun, rank, Session{session});
    hello.credit_report_bytes = credit_report;
    auto wire = std::make_shared<Wire>();
    shard->admit(hello, Welcome{}, std::make_unique<FakeConnection>(wire));
    const auto* share = wire->sent.empty() ? nullptr : std::get_if<Credit>(&wire->sent.back().message);
    if (share != nullptr) {
      wire->eager_limit = share->eager_limit;
      wire->sent.pop_back();
    }
    return wire;
  }

  static PushPull header(std::uint32_t partition, std::uint64_t round) {
    PushPull header;
    header.job_run = kRun;
    header.partition = PartitionId{partition};
    header.round = Round{round};
    header.count = kMaxTensorElements;  // all
    return header;
  }

  static std::byte* begin(Wire& wire, std::uint32_t partition, std::uint64_t round, std::size_t elements) {
    return wire.handler->on_payload(header(partition, round), elements * sizeof(float));
  }

  static void push(Wire& wire, std::uint32_t partition, std::uint64_t round,
                   const std::vector<float>& values) {
    push(wire, header(partition, round), values);
  }
  static void push(Wire& wire, const PushPull& header, const std::vector<float>& values) {
    const std::size_t bytes = values.size() * sizeof(float);
    std::byte* const place = wire.handler->on_payload(header, bytes);
    if (wire.handler == nullptr) return;
    if (place != nullptr) std::memcpy(place, values.data(), bytes);
    Message message = header;
    wire.handler->on_message(message, {place, place != nullptr ? bytes : 0});
  }

  VirtualLoop loop;
  std::unique_ptr<Shard> shard;

 private:
  static Logger quiet() {
    return Logger("server", LogTarget::to_callback([](LogLevel, std::string_view, std::string_view) {},
                                                   LogLevel::debug));
  }
};

// What the lanes of a job have until it ends.
inline std::uint64_t lane_buffers(std::uint64_t lanes, std::uint64_t largest_partition) {
  return lanes * BufferPool::class_bytes(largest_partition * sizeof(float));
}

template <class T>
std::vector<T> all(const Wire& wire) {
  std::vector<T> found;
  for (const Sent& sent : wire.sent) {
    if (const T* message = std::get_if<T>(&sent.message)) found.push_back(*message);
  }
  return found;
}

// The last frame with a payload.
inline std::vector<float> last_payload(const Wire& wire) {
  for (auto sent = wire.sent.rbegin(); sent != wire.sent.rend(); ++sent) {
    if (!std::holds_alternative<Aggregate>(sent->message)) continue;
    std::vector<float> values(sent->payload.size() / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), sent->payload.data(), sent->payload.size());
    return values;
  }
  return {};
}

inline void release(Wire& wire) {
  const std::size_t sent = wire.sent.size();  // on_sent may send more
  for (std::size_t i = 0; i < sent; ++i) {
    const std::uint64_t cookie = std::exchange(wire.sent[i].cookie, 0);
    if (cookie != 0) wire.handler->on_sent(cookie);
  }
}

}  // namespace bps::shard_test

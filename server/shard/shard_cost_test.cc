// In steady state a round of a partition costs no allocation and no lock, on a whole shard with lanes over
// real sockets, nor in the transports on either side of them. Their loop locks its mailbox when it goes to
// sleep and when it wakes up. Where operator new cannot be replaced, pthread_mutex_lock cannot either.
#include "proto/base/testing/allocation_counter.h"
#if BPS_COUNTS_ALLOCATIONS

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <vector>

#include "proto/base/loop/asio_loop.h"
#include "proto/transport/shm/shm_transport.h"
#include "proto/transport/tcp/tcp_transport.h"
#include "server/shard/shard.h"

namespace {
std::atomic<std::uint64_t> locks{0};
}  // namespace

// Everything that is linked into this program takes its locks here.
extern "C" __attribute__((visibility("default"))) int pthread_mutex_lock(pthread_mutex_t* mutex) {
  using Lock = int (*)(pthread_mutex_t*);
  static const Lock real = reinterpret_cast<Lock>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  ++locks;
  return real(mutex);
}

namespace bps {
namespace {

using testing::allocations;

using namespace std::chrono_literals;

constexpr JobRun kRun{5};
constexpr std::uint32_t kWorkers = 4;
constexpr std::uint32_t kPartitions = 6;

// Pushes every partition again as soon as it is answered.
class Worker final : public ConnectionHandler {
 public:
  Worker(std::size_t bytes, std::shared_ptr<Region> region)
      : region_(std::move(region)), in_(region_->bytes().first(bytes)), out_(bytes), frame_(PushPull{}) {
    auto& push = std::get<PushPull>(frame_);
    push.job_run = kRun;
    push.count = kMaxTensorElements;  // all
    rounds_.resize(kPartitions, 0);
  }
  void start(std::unique_ptr<Connection> connection) {
    connection_ = std::move(connection);
    connection_->start(*this);
  }
  void push(std::uint32_t partition) {
    auto& push = std::get<PushPull>(frame_);
    push.partition = PartitionId{partition};
    push.round = Round{rounds_[partition]};
    connection_->send(frame_, Payload(in_, region_.get()), 1);
  }

  std::byte* on_payload(const Message&, std::uint64_t) override { return out_.data(); }
  void on_message(Message& message, std::span<std::byte>) override {
    if (const auto* clear = std::get_if<ClearToSend>(&message)) return push(clear->partition.value);
    if (const auto* aggregate = std::get_if<Aggregate>(&message)) answered(aggregate->partition.value);
  }
  bool on_lent(Message& message, LentPayload& payload) override {
    payload.reset();
    answered(std::get<Aggregate>(message).partition.value);
    return true;
  }
  void on_closed(const Error& error) override { FAIL(error.message); }

  std::uint64_t answers = 0;

 private:
  void answered(std::uint32_t partition) {
    ++answers;
    ++rounds_[partition];
    push(partition);
  }

  const std::shared_ptr<Region> region_;
  const std::span<const std::byte> in_;
  std::vector<std::byte> out_;
  std::vector<std::uint64_t> rounds_;
  Message frame_;
  std::unique_ptr<Connection> connection_;
};

struct Cost {
  std::uint64_t allocations = UINT64_MAX;
  std::uint64_t locks = UINT64_MAX;  // beside those of the loop
};

// Of the quietest thousand answers: queues that become deeper than ever before grow once.
Cost cost_of(Transport& transport, const Endpoint& listen, std::size_t bytes) {
  AsioLoop loop;
  const Logger log(
      "server", LogTarget::to_callback([](LogLevel, std::string_view, std::string_view) {}, LogLevel::trace));
  Shard shard(loop, ShardIndex{0}, 4 * bytes, log, std::vector<Transport*>{&transport});
  OpenJob job;
  job.job_run = kRun;
  for (std::uint32_t i = 0; i < kWorkers; ++i) {
    Member& member = job.members.emplace_back();
    member.rank = member.leader = Rank{i};
    member.incarnation = Incarnation{i + 1};
  }
  shard.open_job(job);
  TensorSlices tensor;
  tensor.name = "weights";
  for (std::uint32_t i = 0; i < kPartitions; ++i) {
    tensor.partitions.push_back({PartitionId{i}, 0, bytes / sizeof(float)});
  }
  shard.declare(DeclareSlices{0, kRun, {}, false, {tensor}});

  std::uint32_t admitted = 0;
  auto listener = transport.listen(loop, listen, [&](std::unique_ptr<Connection> connection) {
    HelloLane hello;
    hello.job_run = kRun;
    hello.rank = Rank{admitted};
    hello.incarnation = Incarnation{++admitted};
    hello.session = Session{1};
    hello.credit_report_bytes = static_cast<std::uint32_t>(2 * bytes);
    shard.admit(hello, Welcome{}, std::move(connection));
  });
  REQUIRE(listener.ok());
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::uint32_t i = 0; i < kWorkers; ++i) {
    auto region = transport.allocate(bytes);
    REQUIRE(region.ok());
    workers.push_back(std::make_unique<Worker>(bytes, std::move(region).value()));
    workers.back()->start(transport.connect(loop, (*listener)->endpoint(), 5s));
    for (std::uint32_t partition = 0; partition < kPartitions; ++partition) {
      workers.back()->push(partition);
    }
  }
  const TimePoint deadline = loop.now() + 60s;
  std::uint64_t turns = 0;  // in each it sleeps at most once
  const auto run = [&](std::uint64_t answers) {
    turns = 0;
    const std::uint64_t goal = workers[0]->answers + answers;
    while (workers[0]->answers < goal) {
      REQUIRE(loop.now() < deadline);
      loop.run_once(deadline);
      ++turns;
    }
  };
  run(1000);
  Cost least;
  for (int batch = 0; batch < 5 && least.allocations + least.locks > 0; ++batch) {
    const std::uint64_t allocations_before = allocations, locks_before = locks;
    run(1000);
    least.allocations = std::min(least.allocations, allocations - allocations_before);
    least.locks = std::min(least.locks, locks - locks_before - std::min(2 * turns, locks - locks_before));
  }
  workers.clear();
  shard.shutdown(Error{}, [] {});
  return least;
}

TEST_CASE("a round costs a shard no allocation and no lock, over TCP") {
  TcpTransport transport;
  const std::size_t bytes = GENERATE(std::size_t{512}, std::size_t{64} << 10, std::size_t{256} << 10);
  const Cost cost = cost_of(transport, Endpoint{}, bytes);
  CHECK(cost.allocations == 0);
  CHECK(cost.locks == 0);
}

TEST_CASE("a round costs a shard no allocation and no lock, over shared memory") {
  ShmTransport transport;
  const std::size_t bytes = GENERATE(std::size_t{512}, std::size_t{64} << 10, std::size_t{256} << 10);
  const Cost cost = cost_of(transport, {"bps-shard-cost-" + std::to_string(::getpid()), 0}, bytes);
  CHECK(cost.allocations == 0);
  CHECK(cost.locks == 0);
}

TEST_CASE("allocations and locks are counted") {
  CHECK(allocations > 0);
  const std::uint64_t before = locks;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&mutex);
  pthread_mutex_unlock(&mutex);
  CHECK(locks == before + 1);
}

}  // namespace
}  // namespace bps

#endif  // BPS_COUNTS_ALLOCATIONS

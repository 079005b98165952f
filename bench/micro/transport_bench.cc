// Payloads from one thread to another through a transport, read once at the other end: summed where they are
// lent, or copied into the receiver's memory. Beside it the sum and the copy alone, from memory as large.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "proto/base/loop/completion.h"
#include "proto/base/loop/loop_thread.h"
#include "proto/transport/shm/shm_transport.h"
#include "proto/transport/tcp/tcp_transport.h"

namespace bps {
namespace {

constexpr std::size_t kMemoryBytes = 100'000'000;  // out of cache
constexpr std::size_t kBurstBytes = 64 * 1024 * 1024;
constexpr std::size_t kWindowBytes = 4 * 1024 * 1024;

void sum_into(std::vector<float>& sum, std::span<const std::byte> payload) {
  const auto* const from = reinterpret_cast<const float*>(payload.data());
  for (std::size_t i = 0; i < payload.size() / sizeof(float); ++i)
    sum[i] += from[i];
  benchmark::DoNotOptimize(sum.data());
}

struct Receiver : ConnectionHandler {
  Receiver(std::size_t payload_bytes, bool sums_in)
      : sums(sums_in), landing(payload_bytes), sum(payload_bytes / 4) {}
  std::byte* on_payload(const Message&, std::uint64_t) override { return landing.data(); }
  bool on_lent(Message&, LentPayload& payload) override {
    if (!sums) return false;
    sum_into(sum, payload.bytes());
    took(payload.bytes().size());
    return true;
  }
  void on_message(Message&, std::span<std::byte> payload) override {
    if (sums) sum_into(sum, payload);
    took(payload.size());
  }
  void took(std::size_t bytes) {
    taken += bytes;
    if (taken - told < kWindowBytes / 4) return;
    told = taken;
    connection->send(Credit{taken});
  }
  void on_closed(const Error&) override { connection.reset(); }

  const bool sums;
  std::vector<std::byte> landing;
  std::vector<float> sum;
  std::unique_ptr<Connection> connection;
  std::uint64_t taken = 0;
  std::uint64_t told = 0;
};

struct Sender : ConnectionHandler {
  std::byte* on_payload(const Message&, std::uint64_t) override { return nullptr; }
  void on_message(Message& message, std::span<std::byte>) override {
    if (const auto* credit = std::get_if<Credit>(&message)) taken = credit->taken;
    pump();
  }
  void on_writable() override { pump(); }
  void on_closed(const Error&) override { lost = true; }
  void pump() {
    for (; sent < wanted && sent - taken < kWindowBytes; sent += payload_bytes) {
      if (at + payload_bytes > memory.size()) at = 0;
      connection->send(PushPull{}, {memory.subspan(at, payload_bytes), region}, 1);
      at += payload_bytes;
    }
  }

  std::unique_ptr<Connection> connection;
  std::span<std::byte> memory;
  const Region* region = nullptr;
  std::size_t payload_bytes = 0;
  std::size_t at = 0;
  std::uint64_t wanted = 0;
  std::uint64_t sent = 0;
  std::uint64_t taken = 0;
  bool lost = false;
};

void move(benchmark::State& state, Transport& transport, const Endpoint& endpoint, bool in_region,
          bool sums) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  Receiver receiver(bytes, sums);
  std::unique_ptr<Listener> listener;
  auto thread = std::move(LoopThread::start("receiver")).value();
  Completion<Endpoint> listening;
  thread->loop().post([&] {
    listener =
        std::move(transport.listen(thread->loop(), endpoint, [&](std::unique_ptr<Connection> accepted) {
          receiver.connection = std::move(accepted);
          receiver.connection->start(receiver);
        })).value();
    listening.set(listener->endpoint());
  });
  listening.wait_until(TimePoint::max());
  {
    AsioLoop loop;
    const auto region = in_region ? transport.allocate(kMemoryBytes).value() : nullptr;
    std::vector<std::byte> ordinary(in_region ? 0 : kMemoryBytes);
    Sender sender;
    sender.memory = in_region ? region->bytes() : std::span(ordinary);
    sender.region = region.get();
    sender.payload_bytes = bytes;
    std::memset(sender.memory.data(), 0, sender.memory.size());
    sender.connection = transport.connect(loop, listening.value(), std::chrono::seconds(5));
    sender.connection->start(sender);
    for (auto _ : state) {
      sender.wanted += kBurstBytes;
      sender.pump();
      while (sender.taken < sender.wanted && !sender.lost)
        loop.run_once(TimePoint::max());
      if (sender.lost) state.SkipWithError("the connection was lost");
    }
  }
  thread->stop();
  receiver.connection.reset();
  listener.reset();
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kBurstBytes));
}

void shm(benchmark::State& state, bool in_region, bool sums) {
  ShmTransport transport;
  move(state, transport, {"bps-bench-" + std::to_string(::getpid()), 0}, in_region, sums);
}

void tcp(benchmark::State& state, bool sums) {
  TcpTransport transport;
  move(state, transport, Endpoint{}, false, sums);
}

void alone(benchmark::State& state, bool sums) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  std::vector<std::byte> memory(kMemoryBytes);
  std::vector<std::byte> landing(bytes);
  std::vector<float> sum(bytes / sizeof(float));
  std::size_t at = 0;
  for (auto _ : state) {
    for (std::size_t done = 0; done < kBurstBytes; done += bytes, at += bytes) {
      if (at + bytes > memory.size()) at = 0;
      if (sums) {
        sum_into(sum, std::span(memory).subspan(at, bytes));
      } else {
        std::memcpy(landing.data(), memory.data() + at, bytes);
        benchmark::DoNotOptimize(landing.data());
      }
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kBurstBytes));
}

void settings(benchmark::internal::Benchmark* benchmark) {
  benchmark->Arg(16 * 1024)
      ->Arg(256 * 1024)
      ->UseRealTime()
      ->MeasureProcessCPUTime()
      ->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(alone, sum, true)->Apply(settings);
BENCHMARK_CAPTURE(shm, region_summed_in_place, true, true)->Apply(settings);
BENCHMARK_CAPTURE(shm, ordinary_summed_in_place, false, true)->Apply(settings);
BENCHMARK_CAPTURE(tcp, summed, true)->Apply(settings);
BENCHMARK_CAPTURE(alone, memcpy, false)->Apply(settings);
BENCHMARK_CAPTURE(shm, region_copied, true, false)->Apply(settings);
BENCHMARK_CAPTURE(shm, ordinary_copied, false, false)->Apply(settings);
BENCHMARK_CAPTURE(tcp, copied, false)->Apply(settings);

}  // namespace
}  // namespace bps

// The workers' side of the floors.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "bench/cluster/control.h"
#include "bench/cluster/worker_options.h"
#include "bench/engines/buffer.h"
#include "bench/engines/engine.h"

namespace bps::bench {

// Sends a tensor, split over all floor servers, and receives one of the same size, both at once.
class FloorEngine final : public Engine {
 public:
  // `in` is sent, `out` received into; both outlive the engine.
  FloorEngine(const WorkerOptions& options, const Buffer& in, const Buffer& out)
      : options_(options), in_(in), out_(out) {}

  Status join() override;
  Status prepare(std::uint64_t round) override;
  Status run(std::uint64_t round) override;
  Status check(std::uint64_t round) override;

  // So far; any thread.
  std::uint64_t received_bytes() const { return received_.load(std::memory_order_relaxed); }

 private:
  struct Peer {
    Fd fd;
    std::uint64_t offset = 0;  // of its slice
    std::uint64_t bytes = 0;
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    std::uint32_t events = 0;  // that epoll watches
  };

  Status move(Peer& peer);
  Status watch(Peer& peer, int operation, std::uint32_t events);

  const WorkerOptions options_;
  const Buffer& in_;
  const Buffer& out_;
  std::vector<Peer> peers_;
  Fd epoll_;
  std::atomic<std::uint64_t> received_{0};
};

// Sends a small message and waits for the answer, which comes when all workers have sent.
class EchoEngine final : public Engine {
 public:
  EchoEngine(const WorkerOptions& options, const Buffer& in, const Buffer& out)
      : options_(options), in_(in), out_(out) {}

  Status join() override;
  Status prepare(std::uint64_t round) override;
  Status run(std::uint64_t round) override;
  Status check(std::uint64_t round) override;

 private:
  const WorkerOptions options_;
  Fd fd_;
  const Buffer& in_;
  const Buffer& out_;
};

}  // namespace bps::bench

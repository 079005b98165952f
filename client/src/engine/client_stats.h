// What a client counts.
#pragma once

#include <atomic>
#include <cstdint>

namespace bps {

// Written by the loop, read by any thread.
struct ClientStats {
  std::atomic<std::uint64_t> pushed_bytes{0};
  std::atomic<std::uint64_t> pulled_bytes{0};
  std::atomic<std::uint64_t> rounds{0};
  std::atomic<std::uint64_t> resent{0};
  std::atomic<std::uint64_t> lanes{0};  // up
  std::atomic<std::uint64_t> shm_lanes{0};
  std::atomic<std::uint64_t> rdma_lanes{0};
  std::atomic<std::uint64_t> workers{0};  // of the job, that are not lost
};

}  // namespace bps

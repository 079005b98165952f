// Says that something has to be done on the CUDA thread, and which call it is in: who ends that thread waits
// until all leases have come back, and if they do not, says why; and the client's loop sees when a call does
// not return, and when NCCL does not go on between the calls.
//
// Owner: by shared_ptr, whoever works on the thread; CudaThread gives them. enter() or enter_nccl(), and
// leave(), in pairs, and show_nccl(): that thread; call(), nccl(): any. `name` is a literal. Limits: kDepth
// calls within each other.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "proto/base/assert.h"

namespace bps {

class CudaLease {
 public:
  struct Call {
    const char* name = nullptr;  // the innermost; null: in none
    bool is_nccl = false;        // which may wait for other processes
    std::uint64_t number = 0;    // another one for each step in or out
    friend bool operator==(const Call&, const Call&) = default;
  };
  // What NCCL has in progress, or has begun on the device, as it was when the thread looked last: calls
  // return before that has ended, and it may wait for other processes.
  struct Progress {
    const char* name = nullptr;  // null: nothing
    std::uint64_t number = 0;    // another one when it has gone on
    friend bool operator==(const Progress&, const Progress&) = default;
  };

  CudaLease() = default;
  explicit CudaLease(std::shared_ptr<void> held) : held_(std::move(held)) {}
  CudaLease(const CudaLease&) = delete;
  CudaLease& operator=(const CudaLease&) = delete;

  void enter(const char* name) { enter({.name = name}); }
  void enter_nccl(const char* name) { enter({.name = name, .is_nccl = true}); }
  void leave() {
    BPS_ASSERT(depth_ > 0);
    --depth_;
    show();
  }
  Call call() const {
    const std::uint64_t number = number_.load(std::memory_order_acquire);
    return {name_.load(std::memory_order_acquire), is_nccl_.load(std::memory_order_acquire), number};
  }

  void show_nccl(const Progress& progress) {
    nccl_number_.store(progress.number, std::memory_order_relaxed);
    nccl_name_.store(progress.name, std::memory_order_release);
  }
  Progress nccl() const {
    const char* const name = nccl_name_.load(std::memory_order_acquire);
    return {name, nccl_number_.load(std::memory_order_relaxed)};
  }

  // As long as it lives.
  class Within {
   public:
    Within(CudaLease& lease, const char* name) : lease_(lease) { lease_.enter(name); }
    ~Within() { lease_.leave(); }
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;

   private:
    CudaLease& lease_;
  };

 private:
  static constexpr std::size_t kDepth = 8;
  void enter(const Call& call) {
    BPS_ASSERT(depth_ + 1 < kDepth);
    calls_[++depth_] = call;
    show();
  }
  // Only this thread writes, so no step is lost.
  void show() {
    number_.store(number_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    name_.store(calls_[depth_].name, std::memory_order_release);
    is_nccl_.store(calls_[depth_].is_nccl, std::memory_order_release);
  }

  const std::shared_ptr<void> held_;
  std::array<Call, kDepth> calls_{};
  std::size_t depth_ = 0;
  std::atomic<std::uint64_t> number_{0};
  std::atomic<const char*> name_{nullptr};
  std::atomic<bool> is_nccl_{false};
  std::atomic<const char*> nccl_name_{nullptr};
  std::atomic<std::uint64_t> nccl_number_{0};
};

}  // namespace bps

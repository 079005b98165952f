// Says that something has to be done on the CUDA thread, and which call it is in: who ends that thread waits
// until all leases have come back, and if they do not, says why.
//
// Owner: by shared_ptr, whoever works on the thread; CudaThread gives them. enter() and leave(): that thread;
// call(): any. `call` is a literal.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

namespace bps {

class CudaLease {
 public:
  CudaLease() = default;
  explicit CudaLease(std::shared_ptr<void> held) : held_(std::move(held)) {}
  CudaLease(const CudaLease&) = delete;
  CudaLease& operator=(const CudaLease&) = delete;

  void enter(const char* call) { call_.store(call, std::memory_order_release); }
  void leave() { enter(nullptr); }
  const char* call() const { return call_.load(std::memory_order_acquire); }

 private:
  const std::shared_ptr<void> held_;
  std::atomic<const char*> call_{nullptr};
};

}  // namespace bps

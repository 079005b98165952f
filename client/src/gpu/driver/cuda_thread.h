// The thread on which a client's GPU is asked for things: no other calls NVIDIA's driver or NCCL for long.
//
// The problem: such a call may never return. A GPU that hangs does not free memory; ncclCommAbort waits for
// kernels and for threads of NCCL's. A client that closes must come back all the same. So stop() waits for
// what is left to do here, for a while, and then leaves the thread behind: it, its loop, and what the call
// holds stay until the process ends.
//
// Owner: CudaWorker; any one thread. Failure: start() returns an error; stop() names the call that does not
// return. Limits: stop() takes `patience`, and kAnswer if that was not enough.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/src/gpu/driver/cuda_lease.h"
#include "proto/base/loop/completion.h"
#include "proto/base/loop/loop_thread.h"

namespace bps {

class CudaThread {
 public:
  static Result<std::unique_ptr<CudaThread>> start();
  explicit CudaThread(std::unique_ptr<LoopThread> thread) : thread_(std::move(thread)) {}
  ~CudaThread() { (void)stop(Duration{}); }
  CudaThread(const CudaThread&) = delete;
  CudaThread& operator=(const CudaThread&) = delete;

  // Also after a stop() that has left it behind; what is posted there is perhaps never done then.
  EventLoop& loop() { return *loop_; }
  // For who has something to do here: stop() waits until it is given back.
  std::shared_ptr<CudaLease> lease();

  // Idempotent.
  static constexpr Duration kAnswer = std::chrono::milliseconds(200);
  Status stop(Duration patience);

 private:
  bool is_over(TimePoint deadline);
  std::string what_remains();
  Error leave_behind(Duration patience);

  std::unique_ptr<LoopThread> thread_;
  EventLoop* const loop_ = &thread_->loop();
  const std::shared_ptr<Monitor<std::size_t>> held_ = std::make_shared<Monitor<std::size_t>>();
  std::vector<std::weak_ptr<CudaLease>> leases_;
  bool is_stopped_ = false;
};

}  // namespace bps

// An AsioLoop with its own thread, on which all signals are blocked.
//
//   auto thread = LoopThread::start("bps-shard-0");      // at most 15 characters are shown by ps and top
//   thread.value()->loop().post([] { ... });
//   thread.value()->stop();                               // refuse, drain, join
//
// Owner: any one thread, not the loop's own. What lives on the loop is built and destroyed by tasks, or after
// stop() by the owner. The loop itself stays valid until the LoopThread is destroyed.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "proto/base/loop/asio_loop.h"

namespace bps {

class LoopThread {
 public:
  static Result<std::unique_ptr<LoopThread>> start(std::string name,
                                                   std::shared_ptr<LoopLock> lock = nullptr);
  ~LoopThread() { stop(); }
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  AsioLoop& loop() { return *loop_; }

  // Later posts are refused, tasks posted before run, then the thread ends. Timers and sockets that are left
  // do nothing any more. Idempotent.
  void stop();

 private:
  explicit LoopThread(std::unique_ptr<AsioLoop> loop) : loop_(std::move(loop)) {}

  std::unique_ptr<AsioLoop> loop_;
  std::thread thread_;
};

}  // namespace bps

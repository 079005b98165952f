// The thread that a client's callbacks run on, one after another; started when the first callback is asked
// for.
//
// Owner: Client, shared with its operations. Any thread. stop() runs what was posted before, then refuses.
#pragma once

#include <memory>

#include "proto/base/loop/completion.h"
#include "proto/base/loop/event_loop.h"
#include "proto/base/loop/loop_thread.h"
#include "proto/base/result.h"

namespace bps {

class CallbackThread {
 public:
  CallbackThread() = default;
  CallbackThread(const CallbackThread&) = delete;
  CallbackThread& operator=(const CallbackThread&) = delete;

  // `closed` after stop(), `os` if there can be no thread.
  Status start();
  // Only after start(). False after stop(): the task was not taken.
  bool post(Task task);
  // Not on the thread itself.
  void stop();

 private:
  struct State {
    std::unique_ptr<LoopThread> thread;
    bool stopped = false;
  };
  Monitor<State> state_;
};

}  // namespace bps

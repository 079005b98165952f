// The thread that a client lives on. The first clients of a process have one each, as many as there are CPUs;
// later ones share theirs with others.
//
// The problem: a process may hold dozens of clients. With a thread each, a round of theirs is hundreds of
// wake-ups, which cost more than what they move; one thread for many takes what has come for all of them when
// it wakes.
//
// A client that has its thread for itself lends the loop (asio_loop.h).
//
// Owner: Client. Any one thread, but loop() from all. Limits: nothing a client does may keep the thread for
// long: others wait meanwhile. A child of fork() never shares with its parent. Failure: `os` when there can
// be no thread.
#pragma once

#include <memory>
#include <vector>

#include "client/src/lanes/data_threads.h"
#include "proto/base/loop/loop_thread.h"

namespace bps {

class ClientThread {
 public:
  static Result<std::unique_ptr<ClientThread>> take();
  ~ClientThread();
  ClientThread(const ClientThread&) = delete;
  ClientThread& operator=(const ClientThread&) = delete;

  AsioLoop& loop() { return thread_->loop(); }
  // Loop. As many as data_threads() says, fewer if the system gives no more threads; they end with the
  // thread's last client, and keep to their CPUs until then.
  LaneLoops lane_loops(DataThreadsFacts facts);

  // Runs it on the loop after what was posted before, and returns when it has run: so what lives on the loop
  // can end. Not on a loop.
  void run(Task task);
  // Once, when nothing lives on the loop any more: the thread ends with its last client. Others may still
  // post: it is run, or destroyed if the thread has ended, before the destructor returns.
  void leave();

 private:
  explicit ClientThread(std::shared_ptr<LoopThread> thread) : thread_(std::move(thread)) {}

  const std::shared_ptr<LoopThread> thread_;
  bool has_left_ = false;
};

}  // namespace bps

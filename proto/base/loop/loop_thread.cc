#include "proto/base/loop/loop_thread.h"

#include <pthread.h>
#include <signal.h>

#include <new>
#include <system_error>

namespace bps {

Result<std::unique_ptr<LoopThread>> LoopThread::start(std::string name, std::shared_ptr<LoopLock> lock) {
  auto loop = AsioLoop::create(std::move(lock));
  if (!loop) return std::move(loop).error();
  std::unique_ptr<LoopThread> self(new LoopThread(std::move(loop).value()));
  // A thread inherits the mask, so it never runs unblocked for a moment.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    self->thread_ = std::thread([loop_pointer = self->loop_.get(), name = name.substr(0, 15)] {
      ::pthread_setname_np(::pthread_self(), name.c_str());
      loop_pointer->run();
    });
  } catch (const std::system_error& error) {
    status = os_error("cannot start thread " + name, error.code().value(), "raise `ulimit -u`");
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!status.ok()) return std::move(status).error();
  return self;
}

void LoopThread::stop() {
  loop_->stop();
  if (!thread_.joinable()) return;
  BPS_ASSERT(thread_.get_id() != std::this_thread::get_id());
  thread_.join();
}

}  // namespace bps

#include "proto/base/loop/loop_thread.h"

#include <pthread.h>
#include <signal.h>

#include <new>
#include <system_error>

#include "proto/base/memory/address_space.h"
#include "proto/base/memory/memory_bounds.h"

namespace bps {
namespace {

// The system has one answer for too many threads and for no room for the stack of another one.
Error cannot_start(const std::string& name, int error) {
  const std::string what = "cannot start thread " + name;
  pthread_attr_t attributes;
  std::size_t stack_bytes = 0;
  if (::pthread_getattr_default_np(&attributes) == 0) {
    ::pthread_attr_getstacksize(&attributes, &stack_bytes);
    ::pthread_attr_destroy(&attributes);
  }
  if (mapping_headroom().bytes < stack_bytes) return cannot_map(what, stack_bytes, error);
  return os_error(what, error, "raise `ulimit -u`, or the pids limit of the container");
}

}  // namespace

Result<std::unique_ptr<LoopThread>> LoopThread::start(std::string name, std::shared_ptr<LoopLock> lock) {
  auto loop = AsioLoop::create(std::move(lock));
  if (!loop) return std::move(loop).error();
  spare_address_space();
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
    status = cannot_start(name, error.code().value());
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

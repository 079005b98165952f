#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "proto/base/epoll_loop.h"

namespace bps {
namespace {

class SignalFdWatcher final : public SignalWatcher {
 public:
  SignalFdWatcher(EpollLoop& loop, int fd, const sigset_t& before, Callback callback)
      : state_(std::make_shared<State>(loop, fd, std::move(callback))), before_(before) {}

  ~SignalFdWatcher() override {
    state_->callback = nullptr;
    if (state_->watching) state_->loop.unwatch(state_->fd, *state_);
    state_->loop.release_later(state_);  // it may be in its callback
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

  Status open() {
    Status status = state_->loop.watch(state_->fd, *state_, EPOLLIN);
    state_->watching = status.ok();
    return status;
  }

 private:
  struct State final : FdWatch {
    State(EpollLoop& watching_loop, int signal_fd, Callback function)
        : loop(watching_loop), fd(signal_fd), callback(std::move(function)) {}
    ~State() override { ::close(fd); }

    void on_loop_gone() override { watching = false; }
    void on_ready(std::uint32_t) override {
      signalfd_siginfo info{};
      while (callback) {
        const ssize_t got = ::read(fd, &info, sizeof info);
        if (got < 0 && errno == EINTR) continue;
        if (got != static_cast<ssize_t>(sizeof info)) return;
        const Callback keep = callback;  // the callback may destroy the watcher
        keep(static_cast<int>(info.ssi_signo));
      }
    }

    EpollLoop& loop;
    const int fd;
    Callback callback;
    bool watching = false;
  };

  std::shared_ptr<State> state_;
  sigset_t before_;
};

}  // namespace

Result<std::unique_ptr<SignalWatcher>> SignalWatcher::watch(EpollLoop& loop,
                                                            std::initializer_list<int> signals,
                                                            Callback callback) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals)
    sigaddset(&set, signal);
  const int fd = ::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  if (fd < 0) return os_error("cannot watch signals: signalfd", errno);
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &set, &before);
  auto watcher = std::make_unique<SignalFdWatcher>(loop, fd, before, std::move(callback));
  if (Status status = watcher->open(); !status.ok()) return std::move(status).error();
  return std::unique_ptr<SignalWatcher>(std::move(watcher));
}

}  // namespace bps

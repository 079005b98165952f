#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <memory>

#include "proto/base/loop/asio_loop.h"

namespace bps {
namespace {

namespace asio = boost::asio;

class SignalFdWatcher final : public SignalWatcher {
 public:
  SignalFdWatcher(AsioLoop& loop, int fd, const sigset_t& before, Callback callback)
      : state_(std::make_shared<State>(loop.io(), fd, std::move(callback))), before_(before) {
    State::arm(state_);
  }

  ~SignalFdWatcher() override {
    state_->callback = nullptr;
    boost::system::error_code ignored;
    state_->descriptor.close(ignored);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  struct State {
    State(asio::io_context& io, int fd, Callback function)
        : descriptor(io, fd), callback(std::move(function)) {}

    static void arm(const std::shared_ptr<State>& state) {
      state->descriptor.async_wait(asio::posix::descriptor_base::wait_read,
                                   [state](const boost::system::error_code& error) {
                                     if (error) return;
                                     state->read();
                                     if (state->callback) arm(state);
                                   });
    }

    void read() {
      signalfd_siginfo info{};
      while (callback) {
        const ssize_t got = ::read(descriptor.native_handle(), &info, sizeof info);
        if (got < 0 && errno == EINTR) continue;
        if (got != static_cast<ssize_t>(sizeof info)) return;
        const Callback keep = callback;  // the callback may destroy the watcher
        keep(static_cast<int>(info.ssi_signo));
      }
    }

    asio::posix::stream_descriptor descriptor;
    Callback callback;
  };

  std::shared_ptr<State> state_;
  sigset_t before_;
};

}  // namespace

Result<std::unique_ptr<SignalWatcher>> SignalWatcher::watch(AsioLoop& loop,
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
  try {
    return std::unique_ptr<SignalWatcher>(
        std::make_unique<SignalFdWatcher>(loop, fd, before, std::move(callback)));
  } catch (const boost::system::system_error& error) {
    ::close(fd);
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return make_error(ErrorCode::os, std::string("cannot watch signals: ") + error.what());
  }
}

}  // namespace bps

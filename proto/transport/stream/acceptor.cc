#include "proto/transport/stream/acceptor.h"

#include <poll.h>

#include <cerrno>
#include <chrono>
#include <cstring>

namespace bps {
namespace {

constexpr int kMaxAcceptsPerTurn = 64;
constexpr Duration kPause = std::chrono::milliseconds(100);

bool is_out_of_resources(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

bool is_readable(int fd) {
  pollfd wanted{fd, POLLIN, 0};
  return ::poll(&wanted, 1, 0) > 0;
}

Acceptor::Acceptor(AsioLoop& loop, std::string where, Logger log, Accepted accepted)
    : loop_(loop), where_(std::move(where)), log_(std::move(log)), accepted_(std::move(accepted)) {}

Status Acceptor::open(UniqueFd fd) {
  if (Status status = readiness_.open(loop_, fd.get()); !status.ok()) return status;
  fd.release();
  open_ = true;
  readiness_.wait_read(shared_from_this());
  return {};
}

void Acceptor::close() {
  if (!std::exchange(open_, false)) return;
  loop_.cancel(pause_);
  readiness_.close();
}

void Acceptor::readable() {
  const auto self = shared_from_this();
  for (int i = 0; open_ && i < kMaxAcceptsPerTurn; ++i) {
    SocketAddress peer;
    UniqueFd fd(::accept4(readiness_.fd(), peer.get(), &peer.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      if (is_out_of_resources(errno)) return pause(errno);
      continue;  // that one connection died before it was accepted
    }
    paused_before_ = false;
    accepted_(std::move(fd), peer);
  }
  if (open_) readiness_.wait_read(self);
}

void Acceptor::pause(int error) {
  if (!std::exchange(paused_before_, true)) {
    log_.warn("cannot accept connections on {}: {}; trying again every {} ms; raise `ulimit -n`", where_,
              std::strerror(error), std::chrono::duration_cast<std::chrono::milliseconds>(kPause).count());
  }
  pause_ = loop_.after(kPause, [self = shared_from_this()] {
    if (self->open_) self->readable();
  });
}

Result<std::unique_ptr<Listener>> listen_on(AsioLoop& loop, UniqueFd fd, Endpoint endpoint, Logger log,
                                            Acceptor::Accepted accepted) {
  auto acceptor = std::make_shared<Acceptor>(loop, to_string(endpoint), std::move(log), std::move(accepted));
  if (Status status = acceptor->open(std::move(fd)); !status.ok()) return std::move(status).error();
  return std::unique_ptr<Listener>(
      std::make_unique<ListenerOf<Acceptor>>(std::move(acceptor), std::move(endpoint)));
}

}  // namespace bps

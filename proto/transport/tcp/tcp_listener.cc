#include "proto/transport/tcp/tcp_listener.h"

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "proto/transport/stream/readiness.h"
#include "proto/transport/tcp/tcp_connection.h"
#include "proto/transport/tcp/tcp_socket.h"

namespace bps {
namespace {

constexpr int kMaxAcceptsPerTurn = 64;
constexpr Duration kPause = std::chrono::milliseconds(100);

bool is_out_of_resources(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

class Acceptor final : public std::enable_shared_from_this<Acceptor> {
 public:
  Acceptor(AsioLoop& loop, std::shared_ptr<const TcpOptions> options, const Endpoint& endpoint,
           Transport::Accepted accepted)
      : loop_(loop), options_(std::move(options)), endpoint_(endpoint), accepted_(std::move(accepted)) {}

  Status open(UniqueFd fd) {
    if (Status status = readiness_.open(loop_, fd.get()); !status.ok()) return status;
    fd.release();
    open_ = true;
    readiness_.wait_read(shared_from_this());
    return {};
  }

  void close() {
    if (!std::exchange(open_, false)) return;
    loop_.cancel(pause_);
    readiness_.close();
  }

  const Endpoint& endpoint() const { return endpoint_; }

  void readable() {
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
      if (!apply_connection_options(fd.get(), *options_).ok()) continue;
      const Transport::Accepted keep = accepted_;  // the callback may destroy the listener
      keep(TcpConnection::accepted(loop_, options_, std::move(fd), endpoint_of(peer)));
    }
    if (open_) readiness_.wait_read(self);
  }
  void writable() {}

 private:
  void pause(int error) {
    if (!std::exchange(paused_before_, true)) {
      options_->log.warn("cannot accept connections on {}: {}; trying again every {} ms; raise `ulimit -n`",
                         to_string(endpoint_), std::strerror(error),
                         std::chrono::duration_cast<std::chrono::milliseconds>(kPause).count());
    }
    pause_ = loop_.after(kPause, [self = shared_from_this()] {
      if (self->open_) self->readable();
    });
  }

  AsioLoop& loop_;
  const std::shared_ptr<const TcpOptions> options_;
  const Endpoint endpoint_;
  const Transport::Accepted accepted_;
  Readiness<Acceptor> readiness_;
  bool open_ = false;
  bool paused_before_ = false;
  TimerId pause_;
};

class TcpListener final : public Listener {
 public:
  explicit TcpListener(std::shared_ptr<Acceptor> acceptor) : acceptor_(std::move(acceptor)) {}
  ~TcpListener() override { acceptor_->close(); }
  Endpoint endpoint() const override { return acceptor_->endpoint(); }

 private:
  std::shared_ptr<Acceptor> acceptor_;
};

Error cannot_listen(const Endpoint& endpoint, int error) {
  std::string advice;
  if (error == EADDRINUSE)
    advice = "another program uses this port: choose another one, or port 0 for any free one";
  if (error == EACCES) advice = "ports below 1024 need privileges";
  if (error == EADDRNOTAVAIL) advice = "this host has no such address";
  return os_error("cannot listen on " + to_string(endpoint), error, std::move(advice));
}

}  // namespace

Result<std::unique_ptr<Listener>> listen_tcp(AsioLoop& loop, std::shared_ptr<const TcpOptions> options,
                                             const Endpoint& endpoint, Transport::Accepted accepted) {
  auto addresses = resolve_blocking(endpoint);
  if (!addresses) return std::move(addresses).error();
  BPS_ASSERT(!addresses->empty());
  SocketAddress address = addresses->front();
  auto fd = make_socket(address.storage.ss_family, *options);
  if (!fd) return std::move(fd).error();
  const int yes = 1;
  if (::setsockopt(fd->get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(fd->get(), address.get(), address.length) != 0 || ::listen(fd->get(), options->backlog) != 0) {
    return cannot_listen(endpoint, errno);
  }
  address.length = sizeof address.storage;
  if (::getsockname(fd->get(), address.get(), &address.length) != 0) return cannot_listen(endpoint, errno);
  // The host as it was given: a name stays a name for those who are told where to connect.
  const Endpoint real{endpoint.host, endpoint_of(address).port};
  auto acceptor = std::make_shared<Acceptor>(loop, std::move(options), real, std::move(accepted));
  if (Status status = acceptor->open(std::move(fd).value()); !status.ok()) return std::move(status).error();
  return std::unique_ptr<Listener>(std::make_unique<TcpListener>(std::move(acceptor)));
}

}  // namespace bps

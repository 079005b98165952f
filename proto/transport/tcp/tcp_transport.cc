#include "proto/transport/tcp/tcp_transport.h"

#include <sys/socket.h>

#include "proto/base/completion.h"
#include "proto/base/loop_thread.h"
#include "proto/transport/tcp/tcp_listener.h"
#include "proto/transport/tcp/tcp_socket.h"
#include "proto/transport/tcp/tcp_stream.h"

namespace bps {
namespace {

// On its loop. Nothing happens if the connection is gone meanwhile.
void connect_stream(const std::weak_ptr<TcpStream>& stream, Result<std::vector<SocketAddress>> addresses) {
  if (const auto alive = stream.lock()) alive->connect_to(std::move(addresses));
}

}  // namespace

// getaddrinfo blocks, so it has a thread, which starts with the first host name. Nothing can stop a look-up
// that has begun, so the end of a transport may wait for one; those behind it are for connections that are
// gone.
class TcpTransport::Resolver {
 public:
  void resolve(AsioLoop& loop, const Endpoint& endpoint, std::weak_ptr<TcpStream> stream) {
    const Status started = thread_.update([](std::unique_ptr<LoopThread>& thread) -> Status {
      if (thread) return {};
      auto made = LoopThread::start("bps-resolver");
      if (!made) return std::move(made).error();
      thread = std::move(made).value();
      return {};
    });
    if (!started.ok()) {
      loop.post([stream, error = started.error()] { connect_stream(stream, error); });
      return;
    }
    thread_.update([&](std::unique_ptr<LoopThread>& thread) {
      thread->loop().post([mailbox = loop.mailbox(), endpoint, stream = std::move(stream)] {
        if (stream.expired()) return;
        mailbox->post(
            [stream, addresses = resolve_blocking(endpoint)] { connect_stream(stream, addresses); });
      });
    });
  }

 private:
  Monitor<std::unique_ptr<LoopThread>> thread_;
};

TcpTransport::TcpTransport(TcpOptions options)
    : options_(std::make_shared<const TcpOptions>(std::move(options))),
      resolver_(std::make_unique<Resolver>()) {}

TcpTransport::~TcpTransport() = default;

Status TcpTransport::check(const TcpOptions& options) {
  auto fd = make_socket(AF_INET, options);
  if (!fd) return std::move(fd).error();
  return {};
}

Result<std::unique_ptr<Listener>> TcpTransport::listen(EventLoop& loop, const Endpoint& endpoint,
                                                       Accepted accepted) {
  return listen_tcp(AsioLoop::of(loop), options_, endpoint, std::move(accepted));
}

std::unique_ptr<Connection> TcpTransport::connect(EventLoop& loop, const Endpoint& endpoint,
                                                  Duration timeout) {
  AsioLoop& own = AsioLoop::of(loop);
  auto stream = std::make_shared<TcpStream>(own, options_, to_string(endpoint));
  stream->expect_connect(timeout);
  auto connection = std::make_unique<TcpConnection>(stream);
  if (auto addresses = numeric_address(endpoint); !addresses.empty()) {
    stream->connect_to(std::move(addresses));
  } else {
    resolver_->resolve(own, endpoint, stream);
  }
  return connection;
}

}  // namespace bps

#include "proto/transport/tcp/tcp_transport.h"

#include <sys/socket.h>

#include "proto/transport/stream/resolver.h"
#include "proto/transport/tcp/tcp_listener.h"
#include "proto/transport/tcp/tcp_socket.h"
#include "proto/transport/tcp/tcp_stream.h"

namespace bps {

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
    resolver_->resolve(own, endpoint, stream,
                       [weak = std::weak_ptr(stream)](Result<std::vector<SocketAddress>> found) {
                         if (const auto alive = weak.lock()) alive->connect_to(std::move(found));
                       });
  }
  return connection;
}

}  // namespace bps

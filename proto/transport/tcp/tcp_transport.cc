#include "proto/transport/tcp/tcp_transport.h"

#include <sys/socket.h>

#include "proto/transport/stream/connect_stream.h"
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
  return connect_stream<TcpStream>(*resolver_, loop, options_, endpoint, timeout);
}

}  // namespace bps

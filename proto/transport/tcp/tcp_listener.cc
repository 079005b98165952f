#include "proto/transport/tcp/tcp_listener.h"

#include <sys/socket.h>

#include <cerrno>

#include "proto/transport/stream/acceptor.h"
#include "proto/transport/tcp/tcp_socket.h"
#include "proto/transport/tcp/tcp_stream.h"

namespace bps {
namespace {

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
  return listen_on(
      loop, std::move(fd).value(), real, options->log,
      [&loop, options, accepted = std::move(accepted)](UniqueFd socket, const SocketAddress& peer) {
        if (!apply_connection_options(socket.get(), *options).ok()) return;
        auto stream = std::make_shared<TcpStream>(loop, options, to_string(endpoint_of(peer)));
        stream->accepted(std::move(socket));
        accepted(std::make_unique<TcpConnection>(std::move(stream)));
      });
}

}  // namespace bps

// One TCP connection. The object that the owner holds is small; the socket, what was read and what is to be
// sent live in a TcpStream, which pending readiness waits keep alive. That is what makes it safe to destroy
// the connection inside any of its callbacks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "proto/base/asio_loop.h"
#include "proto/transport/tcp/tcp_options.h"
#include "proto/transport/tcp/tcp_socket.h"
#include "proto/transport/transport.h"

namespace bps {

class TcpStream;

class TcpConnection final : public Connection {
 public:
  explicit TcpConnection(std::shared_ptr<TcpStream> stream) : stream_(std::move(stream)) {}
  ~TcpConnection() override;

  // An accepted socket.
  static std::unique_ptr<TcpConnection> accepted(AsioLoop& loop, std::shared_ptr<const TcpOptions> options,
                                                 UniqueFd fd, const Endpoint& peer);
  // Not yet connected: call connect_to or fail_to_connect on its stream.
  static std::unique_ptr<TcpConnection> connecting(AsioLoop& loop, std::shared_ptr<const TcpOptions> options,
                                                   const Endpoint& peer, Duration timeout);
  const std::shared_ptr<TcpStream>& stream() const { return stream_; }

  void start(ConnectionHandler& handler) override;
  void send(const Message& message, Payload payload, std::uint64_t cookie) override;
  std::size_t queued_bytes() const override;
  void set_max_header_bytes(std::size_t bytes) override;
  void close() override;
  void close_after_flush(Duration linger) override;
  std::string peer() const override;
  std::unique_ptr<Connection> move_to(EventLoop& loop) override;

 private:
  std::shared_ptr<TcpStream> stream_;  // null once closed or moved
  std::string peer_;                   // kept for then
};

// Tells the stream the addresses of its peer, or that there are none. On its loop; nothing happens if the
// connection is gone meanwhile.
void connect_stream(const std::weak_ptr<TcpStream>& stream, Result<std::vector<SocketAddress>> addresses);

}  // namespace bps

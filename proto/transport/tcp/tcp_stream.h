// A TCP connection: the socket's options, finding the peer, and payloads that travel in the stream. The rest
// is SocketStream's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "proto/transport/stream/send_queue.h"
#include "proto/transport/stream/socket_stream.h"
#include "proto/transport/stream/stream_connection.h"
#include "proto/transport/tcp/tcp_options.h"
#include "proto/transport/tcp/tcp_socket.h"

namespace bps {

class TcpStream final : public SocketStream<TcpStream, SendQueue> {
 public:
  TcpStream(AsioLoop& loop, std::shared_ptr<const TcpOptions> options, std::string peer);

  // Unless it was accepted: expect_connect at once, and connect_to when the addresses of the peer are known.
  void expect_connect(Duration timeout);
  void connect_to(Result<std::vector<SocketAddress>> addresses);
  std::shared_ptr<TcpStream> move_to(AsioLoop& loop);

  // Called by Readiness.
  void writable();

 private:
  friend SocketStream<TcpStream, SendQueue>;

  void try_next_address();
  void finish_connect();

  ssize_t read_some(std::span<iovec> pieces);
  ssize_t write_some(std::size_t& asked);
  bool deliver(std::size_t budget);
  bool deliver_payload();
  void push(std::span<const std::byte> frame, const Payload& payload, std::uint64_t cookie);
  void drop_queue() { queue_.clear(); }

  const std::shared_ptr<const TcpOptions> options_;
  std::vector<SocketAddress> addresses_;
  std::size_t next_address_ = 0;
};

using TcpConnection = StreamConnection<TcpStream>;

}  // namespace bps

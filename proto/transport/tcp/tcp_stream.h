// A TCP connection: the socket's options, finding the peer, and payloads that travel in the stream; perhaps
// with TLS between the frames and the socket. The rest is SocketStream's.
//
// Who connects is `connecting` until its TLS handshake is done, within the same time. Who accepts is open at
// once and comes through the handshake while it reads: the time for that is the time that its owner gives a
// peer to say who it is. A peer that fails it is on_closed, as `unauthorised` or `protocol`, with the reason.
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
#include "proto/transport/tls/tls_session.h"

namespace bps {

class TcpStream final : public SocketStream<TcpStream, SendQueue> {
 public:
  TcpStream(AsioLoop& loop, std::shared_ptr<const TcpOptions> options, std::string peer);

  void accepted(UniqueFd fd);
  // Unless it was accepted: expect_connect at once, and connect_to when the addresses of the peer are known.
  void expect_connect(Duration timeout);
  void connect_to(Result<std::vector<SocketAddress>> addresses);
  std::shared_ptr<TcpStream> move_to(AsioLoop& loop);
  void close_after_flush(Duration linger);
  bool has_input();

  // Called by Readiness.
  void readable();
  void writable();

 private:
  friend SocketStream<TcpStream, SendQueue>;

  void try_next_address();
  void finish_connect();
  void shake_hands();
  void tls_failed();

  ssize_t read_some(std::span<iovec> pieces);
  ssize_t read_tls(std::span<iovec> pieces);
  void read_failed(int error);
  bool holds_input() const { return tls_ != nullptr && tls_->holds_input(); }
  bool short_read_is_all() const { return !holds_input(); }
  ssize_t write_some(std::size_t& asked);
  void wait_for_room();
  bool deliver(std::size_t budget);
  bool deliver_payload();
  void push(std::span<const std::byte> frame, const Payload& payload, std::uint64_t cookie);
  void drop_queue() { queue_.clear(); }

  const std::shared_ptr<const TcpOptions> options_;
  std::vector<std::byte> checked_frame_;  // kept for its memory
  std::vector<SocketAddress> addresses_;
  std::size_t next_address_ = 0;

  std::unique_ptr<TlsSession> tls_;  // null: plain
  bool read_waits_for_room_ = false;
  bool write_waits_for_input_ = false;
};

using TcpConnection = StreamConnection<TcpStream>;

}  // namespace bps

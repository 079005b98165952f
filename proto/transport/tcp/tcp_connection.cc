#include "proto/transport/tcp/tcp_connection.h"

#include "proto/transport/tcp/tcp_stream.h"

namespace bps {

std::unique_ptr<TcpConnection> TcpConnection::accepted(AsioLoop& loop,
                                                       std::shared_ptr<const TcpOptions> options, UniqueFd fd,
                                                       const Endpoint& peer) {
  auto stream = std::make_shared<TcpStream>(loop, std::move(options), to_string(peer));
  stream->accepted(std::move(fd));
  return std::make_unique<TcpConnection>(std::move(stream));
}

std::unique_ptr<TcpConnection> TcpConnection::connecting(AsioLoop& loop,
                                                         std::shared_ptr<const TcpOptions> options,
                                                         const Endpoint& peer, Duration timeout) {
  auto stream = std::make_shared<TcpStream>(loop, std::move(options), to_string(peer));
  stream->expect_connect(timeout);
  return std::make_unique<TcpConnection>(std::move(stream));
}

TcpConnection::~TcpConnection() { close(); }

void TcpConnection::start(ConnectionHandler& handler) {
  if (stream_) stream_->start(handler);
}

void TcpConnection::send(const Message& message, Payload payload, std::uint64_t cookie) {
  if (stream_) stream_->send(message, payload.bytes, cookie);
}

std::size_t TcpConnection::queued_bytes() const { return stream_ ? stream_->queued_bytes() : 0; }

void TcpConnection::set_max_header_bytes(std::size_t bytes) {
  if (stream_) stream_->set_max_header_bytes(bytes);
}

void TcpConnection::close() {
  if (!stream_) return;
  peer_ = stream_->peer();
  std::exchange(stream_, nullptr)->close();
}

void TcpConnection::close_after_flush(Duration linger) {
  if (!stream_) return;
  peer_ = stream_->peer();
  std::exchange(stream_, nullptr)->close_after_flush(linger);
}

std::string TcpConnection::peer() const { return stream_ ? stream_->peer() : peer_; }

std::unique_ptr<Connection> TcpConnection::move_to(EventLoop& loop) {
  auto* const target = dynamic_cast<AsioLoop*>(&loop);
  BPS_ASSERT(target != nullptr && stream_ != nullptr);
  peer_ = stream_->peer();
  return std::make_unique<TcpConnection>(std::exchange(stream_, nullptr)->move_to(*target));
}

void connect_stream(const std::weak_ptr<TcpStream>& stream, Result<std::vector<SocketAddress>> addresses) {
  if (const auto alive = stream.lock()) alive->connect_to(std::move(addresses));
}

}  // namespace bps

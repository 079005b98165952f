#include "proto/transport/shm/shm_connection.h"

#include "proto/transport/shm/shm_stream.h"

namespace bps {

ShmConnection::~ShmConnection() { close(); }

void ShmConnection::start(ConnectionHandler& handler) {
  if (stream_) stream_->start(handler);
}

void ShmConnection::send(const Message& message, Payload payload, std::uint64_t cookie) {
  if (stream_) stream_->send(message, payload, cookie);
}

std::size_t ShmConnection::queued_bytes() const { return stream_ ? stream_->queued_bytes() : 0; }

void ShmConnection::set_max_header_bytes(std::size_t bytes) {
  if (stream_) stream_->set_max_header_bytes(bytes);
}

void ShmConnection::close() {
  if (!stream_) return;
  peer_ = stream_->peer();
  std::exchange(stream_, nullptr)->close();
}

void ShmConnection::close_after_flush(Duration linger) {
  if (!stream_) return;
  peer_ = stream_->peer();
  std::exchange(stream_, nullptr)->close_after_flush(linger);
}

std::string ShmConnection::peer() const { return stream_ ? stream_->peer() : peer_; }

std::unique_ptr<Connection> ShmConnection::move_to(EventLoop& loop) {
  auto* const target = dynamic_cast<AsioLoop*>(&loop);
  BPS_ASSERT(target != nullptr && stream_ != nullptr);
  peer_ = stream_->peer();
  return std::make_unique<ShmConnection>(std::exchange(stream_, nullptr)->move_to(*target));
}

}  // namespace bps

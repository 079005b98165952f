// The Connection that an owner holds. Everything else lives in a Stream (TcpStream, ShmStream), which its
// pending waits keep alive: that is what makes it safe to destroy the connection inside any of its callbacks.
// Includes Asio: for the .cc files of transports only.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "proto/base/assert.h"
#include "proto/base/loop/asio_loop.h"
#include "proto/transport/transport.h"

namespace bps {

template <class Stream>
class StreamConnection final : public Connection {
 public:
  explicit StreamConnection(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
  ~StreamConnection() override { close(); }

  void start(ConnectionHandler& handler) override {
    if (stream_) stream_->start(handler);
  }
  void send(const Message& message, Payload payload, std::uint64_t cookie) override {
    if (stream_) stream_->send(message, payload, cookie);
  }
  bool has_input() override {
    if constexpr (requires(Stream & stream) { stream.has_input(); }) return stream_ && stream_->has_input();
    return false;
  }
  std::size_t queued_bytes() const override { return stream_ ? stream_->queued_bytes() : 0; }
  void end_handshake(std::size_t bytes) override {
    if (stream_) stream_->end_handshake(bytes);
  }
  void close() override {
    if (stream_) let_go()->close();
  }
  void close_after_flush(Duration linger) override {
    if (stream_) let_go()->close_after_flush(linger);
  }
  std::string peer() const override { return stream_ ? stream_->peer() : peer_; }
  std::unique_ptr<Connection> move_to(EventLoop& loop) override {
    BPS_ASSERT(stream_ != nullptr);
    return std::make_unique<StreamConnection>(let_go()->move_to(AsioLoop::of(loop)));
  }

 private:
  std::shared_ptr<Stream> let_go() {
    peer_ = stream_->peer();
    return std::exchange(stream_, nullptr);
  }

  std::shared_ptr<Stream> stream_;  // null once closed or moved
  std::string peer_;                // kept for then
};

}  // namespace bps

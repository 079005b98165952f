// One connection over shared memory. The object that the owner holds is small; everything else lives in a
// ShmStream, which pending readiness waits keep alive. That is what makes it safe to destroy the connection
// inside any of its callbacks.
#pragma once

#include <memory>
#include <string>

#include "proto/base/asio_loop.h"
#include "proto/transport/transport.h"

namespace bps {

class ShmStream;

class ShmConnection final : public Connection {
 public:
  explicit ShmConnection(std::shared_ptr<ShmStream> stream) : stream_(std::move(stream)) {}
  ~ShmConnection() override;

  void start(ConnectionHandler& handler) override;
  void send(const Message& message, Payload payload, std::uint64_t cookie) override;
  std::size_t queued_bytes() const override;
  void set_max_header_bytes(std::size_t bytes) override;
  void close() override;
  void close_after_flush(Duration linger) override;
  std::string peer() const override;
  std::unique_ptr<Connection> move_to(EventLoop& loop) override;

 private:
  std::shared_ptr<ShmStream> stream_;  // null once closed or moved
  std::string peer_;                   // kept for then
};

}  // namespace bps

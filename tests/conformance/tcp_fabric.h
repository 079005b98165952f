// TCP on 127.0.0.1: both loops on the test's thread.
#pragma once

#include "proto/transport/tcp/tcp_transport.h"
#include "tests/conformance/socket_fabric.h"

namespace bps::conformance {

class TcpFabric final : public SocketFabric {
 public:
  explicit TcpFabric(TcpOptions options = {}) : transport_(std::move(options)) {}

  TcpTransport& transport() override { return transport_; }
  Endpoint any_endpoint() override { return Endpoint{"127.0.0.1", 0}; }
  Endpoint dead_endpoint() override;
  std::unique_ptr<RawPeer> raw_connect(const Endpoint& endpoint) override;

 private:
  TcpTransport transport_;
};

}  // namespace bps::conformance

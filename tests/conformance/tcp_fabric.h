// TCP on 127.0.0.1: both loops on the test's thread.
#pragma once

#include "proto/base/asio_loop.h"
#include "proto/transport/tcp/tcp_transport.h"
#include "tests/conformance/fabric.h"

namespace bps::conformance {

class TcpFabric final : public Fabric {
 public:
  explicit TcpFabric(TcpOptions options = {}) : transport_(std::move(options)) {}

  AsioLoop& loop() override { return loop_; }
  AsioLoop& other_loop() override { return other_loop_; }
  TcpTransport& transport() override { return transport_; }
  Endpoint any_endpoint() override { return Endpoint{"127.0.0.1", 0}; }
  Endpoint dead_endpoint() override;
  bool run_until(const std::function<bool()>& done, Duration limit) override;
  std::size_t largest_payload() const override { return 64 * 1024 * 1024; }
  std::unique_ptr<RawPeer> raw_connect(const Endpoint& endpoint) override;

 private:
  AsioLoop loop_;
  AsioLoop other_loop_;
  TcpTransport transport_;
};

}  // namespace bps::conformance

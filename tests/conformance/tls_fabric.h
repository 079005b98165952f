// TCP on 127.0.0.1 with mutual TLS, and raw peers that speak TLS but what they like inside of it.
#pragma once

#include "proto/transport/tcp/tcp_transport.h"
#include "proto/transport/tls/certificate_harness.h"
#include "tests/conformance/socket_fabric.h"
#include "tests/conformance/tcp_fabric.h"

namespace bps::conformance {

class TlsFabric final : public SocketFabric {
 public:
  TlsFabric();

  TcpTransport& transport() override { return transport_; }
  Endpoint any_endpoint() override { return Endpoint{"127.0.0.1", 0}; }
  Endpoint dead_endpoint() override { return plain_.dead_endpoint(); }
  std::unique_ptr<RawPeer> raw_connect(const Endpoint& endpoint) override;

  // One for all tests of a program: making keys takes time.
  static const testing::CertificateAuthority& authority();
  static const SharedTls& good_context();

 private:
  TcpFabric plain_;
  TcpTransport transport_;
};

TcpOptions with_tls(SharedTls tls);

}  // namespace bps::conformance

// RDMA between both ends on the test's thread, over devices that exist in this process only.
#pragma once

#include "proto/transport/rdma/fake/fake_fabric.h"
#include "proto/transport/rdma/rdma_transport.h"
#include "tests/conformance/socket_fabric.h"

namespace bps::conformance {

class RdmaFakeFabric final : public SocketFabric {
 public:
  explicit RdmaFakeFabric(FakeOptions fake = {}, RdmaOptions options = {})
      : fabric_(std::make_shared<FakeFabric>(fake)), transport_(fabric_, std::move(options)) {}

  RdmaTransport& transport() override { return transport_; }
  FakeFabric& fake() { return *fabric_; }
  Endpoint any_endpoint() override { return {FakeFabric::kHost, 0}; }
  Endpoint dead_endpoint() override { return {FakeFabric::kHost, 9}; }
  std::unique_ptr<RawPeer> raw_connect(const Endpoint&) override { return nullptr; }

 private:
  const std::shared_ptr<FakeFabric> fabric_;
  RdmaTransport transport_;
};

}  // namespace bps::conformance

// RDMA between both ends on the test's thread, over devices that exist in this process only.
#pragma once

#include "proto/transport/rdma/fake/fake_fabric.h"
#include "proto/transport/rdma/rdma_transport.h"
#include "tests/conformance/socket_fabric.h"

namespace bps::conformance {

class RdmaFakeFabric final : public SocketFabric {
 public:
  explicit RdmaFakeFabric(FakeOptions fake = {}, RdmaOptions options = {})
      : fabric_(std::make_shared<FakeFabric>(fake)),
        options_(options),
        transport_(fabric_, std::move(options)) {}

  ~RdmaFakeFabric() override { check(); }

  RdmaTransport& transport() override { return transport_; }
  FakeFabric& fake() { return *fabric_; }
  const std::shared_ptr<FakeFabric>& verbs() const { return fabric_; }
  Endpoint any_endpoint() override { return {FakeFabric::kHost, 0}; }
  Endpoint dead_endpoint() override { return {FakeFabric::kHost, 9}; }
  bool has_resets() const override { return false; }
  // Says hello, and reads as if the transport streamed everything: what is lent comes out behind its header,
  // and is given back.
  std::unique_ptr<RawPeer> raw_connect(const Endpoint& endpoint) override;

 private:
  // Nothing was ever sent that found no buffer.
  void check() const;

  const std::shared_ptr<FakeFabric> fabric_;
  RdmaOptions options_;
  RdmaTransport transport_;
};

}  // namespace bps::conformance

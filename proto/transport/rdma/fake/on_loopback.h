// The one address of a FakeFabric stands for 127.0.0.1, so that RDMA is found where TCP listens.
#pragma once

#include "proto/transport/rdma/fake/fake_fabric.h"
#include "proto/transport/transport.h"

namespace bps {

class OnLoopback final : public Transport {
 public:
  // Of RDMA on a FakeFabric. Outlives this.
  explicit OnLoopback(Transport& transport) : transport_(transport) {}
  Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Endpoint& endpoint,
                                           Accepted accepted) override {
    return transport_.listen(loop, {FakeFabric::kHost, endpoint.port}, std::move(accepted));
  }
  std::unique_ptr<Connection> connect(EventLoop& loop, const Endpoint& endpoint, Duration timeout) override {
    return transport_.connect(loop, {FakeFabric::kHost, endpoint.port}, timeout);
  }
  Result<std::shared_ptr<Region>> allocate(std::size_t bytes) override { return transport_.allocate(bytes); }

 private:
  Transport& transport_;
};

}  // namespace bps

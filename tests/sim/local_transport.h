// Between the ranks of a host, as shared memory is: by names, which need no port, on the virtual network.
// Nothing cuts such a link but the death of one of its ends.
//
// Owner: SimWorker. Lives on: its loop.
#pragma once

#include <string_view>
#include <utility>

#include "tests/sim/virtual_transport.h"

namespace bps::sim {

class LocalTransport final : public Transport {
 public:
  explicit LocalTransport(Transport& network) : network_(network) {}

  Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Endpoint& endpoint,
                                           Accepted accepted) override {
    return network_.listen(loop, {endpoint.host, kPort}, std::move(accepted));
  }
  std::unique_ptr<Connection> connect(EventLoop& loop, const Endpoint& endpoint, Duration timeout) override {
    return network_.connect(loop, {endpoint.host, kPort}, timeout);
  }
  Result<std::shared_ptr<Region>> allocate(std::size_t bytes) override { return network_.allocate(bytes); }

  static bool is_local(const Side& side) {
    return std::string_view(side.listener.host).starts_with("bps-local-");
  }

 private:
  static constexpr std::uint16_t kPort = 1;

  Transport& network_;
};

}  // namespace bps::sim

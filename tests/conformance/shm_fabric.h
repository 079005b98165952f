// Shared memory between both ends on the test's thread.
#pragma once

#include "proto/transport/shm/shm_transport.h"
#include "tests/conformance/socket_fabric.h"

namespace bps::conformance {

class ShmFabric final : public SocketFabric {
 public:
  explicit ShmFabric(ShmOptions options = {}) : transport_(std::move(options)) {}

  ShmTransport& transport() override { return transport_; }
  Endpoint any_endpoint() override;
  Endpoint dead_endpoint() override;
  std::size_t lent_bytes() const override { return 100'000; }
  // Says hello, and reads as if the transport streamed everything: what is lent comes out behind its header,
  // and is given back.
  std::unique_ptr<RawPeer> raw_connect(const Endpoint& endpoint) override;

 private:
  ShmTransport transport_;
};

// A name that nobody else uses.
std::string unused_name();
// A blocking socket that is connected to a listener and has said nothing.
UniqueFd connect_silently(const Endpoint& endpoint);

}  // namespace bps::conformance

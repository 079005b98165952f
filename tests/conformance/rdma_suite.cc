// RDMA between both ends on the test's thread, over a device of this host; skipped where it has none.
#include <cstdio>
#include <cstdlib>

#include "proto/base/config/env.h"
#include "proto/transport/rdma/rdma_transport.h"
#include "proto/transport/rdma/real/open_verbs.h"
#include "tests/conformance/rdma_verbs.h"
#include "tests/conformance/socket_fabric.h"

namespace bps::conformance {
namespace {

constexpr int kSkipped = 77;

class RdmaFabric final : public SocketFabric {
 public:
  explicit RdmaFabric(std::shared_ptr<Verbs> verbs) : verbs_(verbs), transport_(std::move(verbs)) {}

  RdmaTransport& transport() override { return transport_; }
  Endpoint any_endpoint() override { return {host_, 0}; }
  Endpoint dead_endpoint() override { return {host_, 9}; }
  std::unique_ptr<RawPeer> raw_connect(const Endpoint&) override { return nullptr; }
  const std::shared_ptr<Verbs>& verbs() const { return verbs_; }

 private:
  const std::string host_ = env("BPS_RDMA_TEST_ADDRESS").value_or("10.78.0.1");
  const std::shared_ptr<Verbs> verbs_;
  RdmaTransport transport_;
};

}  // namespace

std::unique_ptr<Fabric> make_fabric() {
  auto verbs = open_verbs();
  if (!verbs) {
    std::printf("skipped: %s\n", to_string(verbs.error()).c_str());
    std::fflush(stdout);
    std::_Exit(kSkipped);
  }
  return std::make_unique<RdmaFabric>(std::move(verbs).value());
}

std::shared_ptr<Verbs> verbs_of(Fabric& fabric) { return dynamic_cast<RdmaFabric&>(fabric).verbs(); }

}  // namespace bps::conformance

#include "tests/conformance/rdma_fake_fabric.h"
#include "tests/conformance/rdma_verbs.h"

namespace bps::conformance {

// Requests take a while, and are done in an order of the device's own.
std::unique_ptr<Fabric> make_fabric() {
  FakeOptions options;
  options.shuffle = true;
  return std::make_unique<RdmaFakeFabric>(options);
}

std::shared_ptr<Verbs> verbs_of(Fabric& fabric) { return dynamic_cast<RdmaFakeFabric&>(fabric).verbs(); }

}  // namespace bps::conformance

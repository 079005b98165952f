#include "tests/conformance/rdma_fake_fabric.h"

namespace bps::conformance {

std::unique_ptr<Fabric> make_fabric() { return std::make_unique<RdmaFakeFabric>(); }

}  // namespace bps::conformance

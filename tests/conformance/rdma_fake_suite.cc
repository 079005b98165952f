#include "tests/conformance/rdma_fake_fabric.h"
#include "tests/conformance/rdma_verbs.h"

namespace bps::conformance {

std::unique_ptr<Fabric> make_fabric() { return std::make_unique<RdmaFakeFabric>(); }

std::shared_ptr<Verbs> verbs_of(Fabric& fabric) { return dynamic_cast<RdmaFakeFabric&>(fabric).verbs(); }

}  // namespace bps::conformance

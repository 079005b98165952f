#include "tests/conformance/tls_fabric.h"

namespace bps::conformance {

std::unique_ptr<Fabric> make_fabric() { return std::make_unique<TlsFabric>(); }

}  // namespace bps::conformance

#include "tests/conformance/tcp_fabric.h"

namespace bps::conformance {

std::unique_ptr<Fabric> make_fabric() { return std::make_unique<TcpFabric>(); }

}  // namespace bps::conformance

#include "tests/conformance/tcp_fabric.h"

namespace bps::conformance {

std::unique_ptr<Fabric> make_fabric() {
  TcpOptions options;
  options.checksum = true;
  return std::make_unique<TcpFabric>(options);
}

}  // namespace bps::conformance

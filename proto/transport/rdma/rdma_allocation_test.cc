// In steady state a frame costs no allocation.
#include "proto/transport/lending/lending_echoes.h"
#if BPS_COUNTS_ALLOCATIONS

#include "proto/transport/rdma/fake/fake_fabric.h"
#include "proto/transport/rdma/rdma_transport.h"

namespace bps {
namespace {

TEST_CASE("a frame costs no allocation in steady state, however its payload is read") {
  // The last is larger than the slab.
  testing::check_lending_echoes(
      {0, 1024, 4096, 64 * 1024, 256 * 1024, 1100 * 1024}, [](const testing::LendingCase& what) {
        AsioLoop loop;
        RdmaOptions options;
        options.probe_interval =
            std::chrono::hours(1);  // timers allocate, and a busy machine may take a second
        RdmaTransport transport(std::make_shared<FakeFabric>(), options);
        return testing::allocations_of_lending_echoes(loop, transport, {FakeFabric::kHost, 0}, what);
      });
}

}  // namespace
}  // namespace bps

#endif  // BPS_COUNTS_ALLOCATIONS

// In steady state a frame costs no allocation.
#include "proto/transport/lending/lending_echoes.h"
#if BPS_COUNTS_ALLOCATIONS

#include <unistd.h>

#include <string>

#include "proto/transport/shm/shm_transport.h"

namespace bps {
namespace {

TEST_CASE("a frame costs no allocation in steady state, however its payload travels") {
  testing::check_lending_echoes({0, 1024, 4096, 256 * 1024}, [](const testing::LendingCase& what) {
    AsioLoop loop;
    ShmTransport transport;
    const Endpoint endpoint{"bps-allocation-test-" + std::to_string(::getpid()), 0};
    return testing::allocations_of_lending_echoes(loop, transport, endpoint, what);
  });
}

}  // namespace
}  // namespace bps

#endif  // BPS_COUNTS_ALLOCATIONS

// The simulator's network: what passes there passes on a real one, so it must keep the same contract.
#include "tests/conformance/virtual_fabric.h"

#include "proto/base/loop/virtual_loop.h"
#include "tests/conformance/fabric.h"
#include "tests/sim/virtual_transport.h"

namespace bps::conformance {
namespace {

class VirtualFabric final : public Fabric {
 public:
  explicit VirtualFabric(std::uint64_t seed) : transport_(loop_, options(seed)) {}

  EventLoop& loop() override { return loop_; }
  EventLoop& other_loop() override { return loop_; }
  Transport& transport() override { return transport_; }
  Endpoint any_endpoint() override { return Endpoint{"10.0.0.1", 0}; }
  Endpoint dead_endpoint() override { return Endpoint{"10.0.0.1", 9}; }
  bool run_until(const std::function<bool()>& done, Duration limit) override {
    return loop_.run_until(done, loop_.now() + limit);
  }
  std::size_t largest_payload() const override { return 1'100'000; }
  std::size_t lent_bytes() const override { return kLendingPercent == 100 ? 100'000 : 0; }
  std::unique_ptr<RawPeer> raw_connect(const Endpoint&) override { return nullptr; }

 private:
  static sim::NetworkOptions options(std::uint64_t seed) {
    sim::NetworkOptions result;
    result.seed = seed;
    result.lending_percent = kLendingPercent;
    return result;
  }

  VirtualLoop loop_;
  sim::VirtualTransport transport_;
};

}  // namespace

std::unique_ptr<Fabric> make_fabric() {
  static std::uint64_t seed = 0;
  return std::make_unique<VirtualFabric>(++seed);
}

}  // namespace bps::conformance

// What every device must show, soft or not: how often it is asked for what is expensive.
#include <algorithm>

#include "proto/transport/rdma/rdma_transport.h"
#include "tests/conformance/support.h"

namespace bps::conformance {
namespace {

TEST_CASE("no payload registers anything, and one SEND in 16 is signalled") {
  const auto fabric = make_fabric();
  Pair pair(*fabric);
  auto region = fabric->transport().allocate(600'000);
  REQUIRE(region.ok());
  const auto data = pattern(600'000, 1);
  std::copy(data.begin(), data.end(), (*region)->bytes().begin());
  const auto ordinary = pattern(300'000, 2);
  pair.server.keep = false;
  pair.connect_and_wait();
  const RdmaCounters& counters = dynamic_cast<RdmaTransport&>(fabric->transport()).counters();
  const std::uint64_t registrations = counters.registrations;
  CHECK(registrations > 0);
  constexpr std::uint64_t kFrames = 600;
  std::uint64_t next = 0;
  const auto pump = [&] {
    for (; next < kFrames && pair.client.connection->queued_bytes() < 256 * 1024; ++next) {
      const std::size_t bytes = next * 7919 % 300'000;
      if (next % 3 == 0) {
        pair.client.send(push_pull(next), {(*region)->bytes().subspan(bytes, bytes + 1), region->get()},
                         next + 1);
      } else {
        pair.client.send(push_pull(next), std::span(ordinary).first(next % 3 == 1 ? bytes : bytes % 5000),
                         next + 1);
      }
    }
  };
  pair.client.at_writable = pump;
  pump();
  // What has been read is told before the message is.
  REQUIRE(fabric->run_until(
      [&] { return pair.client.sent.size() == kFrames && pair.server.messages >= static_cast<int>(kFrames); },
      kLimit));
  CHECK(pair.server.messages == static_cast<int>(kFrames));
  CHECK(counters.registrations == registrations);
  CHECK(counters.signalled_sends * 16 <= counters.sends);
  CHECK(counters.sends > 64);
  CHECK(counters.reads > kFrames / 2);
}

TEST_CASE("fifty connections that die in the middle of something make room for the next") {
  const auto fabric = make_fabric();
  const auto payload = pattern(100'000, 1);
  for (int i = 0; i < 50; ++i) {
    Pair pair(*fabric);
    pair.connect();
    for (std::uint64_t k = 1; k <= 3; ++k)
      pair.client.send(push_pull(k), payload, k);
    REQUIRE(fabric->run_until([&] { return pair.server.messages >= i % 3; }, kLimit));
    End& first = i % 2 == 0 ? pair.client : pair.server;
    if (first.connection) first.destroy();
    pair.settle();
  }
}

}  // namespace
}  // namespace bps::conformance

// Connections over RDMA on which nothing happens that should: who notices, and what is no such thing.
#include <algorithm>

#include "tests/conformance/rdma_fake_fabric.h"
#include "tests/conformance/support.h"

namespace bps::conformance {
namespace {

using Catch::Contains;

RdmaOptions impatient(std::uint32_t silent_probes) {
  RdmaOptions options;
  options.probe_interval = 5ms;
  options.silent_probes = silent_probes;
  return options;
}

// The client lends a payload that the server begins to read.
std::shared_ptr<Region> lend(RdmaFakeFabric& fabric, Pair& pair) {
  auto region = fabric.transport().allocate(10'000);
  REQUIRE(region.ok());
  const auto data = pattern(10'000, 1);
  std::copy(data.begin(), data.end(), (*region)->bytes().begin());
  const std::uint64_t reads = fabric.transport().counters().reads;
  pair.client.send(push_pull(1), {(*region)->bytes(), region->get()}, 1);
  REQUIRE(fabric.run_until([&] { return fabric.transport().counters().reads == reads + 1; }, kLimit));
  return std::move(region).value();
}

TEST_CASE("a connection that nobody uses finds out that the peer does not answer") {
  RdmaOptions options;
  options.probe_interval = 20ms;
  RdmaFakeFabric fabric({}, options);
  Pair pair(fabric);
  pair.connect();
  const auto before = fabric.fake().requests();
  REQUIRE(fabric.run_until([&] { return fabric.fake().requests() >= before + 8; }, kLimit));  // and goes on
  CHECK(pair.client.closed + pair.server.closed == 0);
  fabric.fake().fail_next_request(kCompletionUnanswered);
  REQUIRE(fabric.run_until([&] { return pair.client.closed == 1 && pair.server.closed == 1; }, kLimit));
  const End& first =
      pair.client.end.message.find("closed by") == std::string::npos ? pair.client : pair.server;
  CHECK_THAT(first.end.message, Contains(describe_completion(kCompletionUnanswered)));
}

TEST_CASE("a READ that is neither carried out nor fails ends its connection, though the peer is alive") {
  RdmaFakeFabric fabric({}, impatient(8));
  Pair pair(fabric);
  pair.connect_and_wait();
  fabric.fake().hold_reads(UINT32_MAX);
  const auto region = lend(fabric, pair);
  const RdmaCounters& counters = fabric.transport().counters();
  const std::uint64_t sends = counters.sends;
  REQUIRE(fabric.run_until([&] { return pair.server.closed == 1 && pair.client.closed == 1; }, kLimit));
  CHECK(pair.server.end.code == ErrorCode::peer_lost);
  CHECK_THAT(
      pair.server.end.message,
      Contains("lost: RDMA device fake0 has neither carried out nor failed any of 1 requests for 40ms"));
  CHECK(pair.server.messages == 0);
  CHECK(counters.sends >= sends + 8);  // they did go through
  CHECK(counters.failed_requests == 0);
  pair.server.destroy();
  pair.client.destroy();
  CHECK(fabric.fake().queue_pairs() == 0);
}

TEST_CASE("SENDs that are neither carried out nor fail end their connection") {
  RdmaFakeFabric fabric({}, impatient(8));
  Pair pair(fabric);
  pair.connect_and_wait();
  fabric.fake().fall_silent();
  REQUIRE(fabric.run_until([&] { return pair.server.closed == 1 && pair.client.closed == 1; }, kLimit));
  for (const End* const end : {&pair.server, &pair.client})
    CHECK_THAT(end->end.message, Contains("neither carried out nor failed any of"));
}

TEST_CASE("a device that is slow is waited for, as long as something comes of it now and then") {
  constexpr std::uint32_t kProbes = 24;
  RdmaFakeFabric fabric({}, impatient(kProbes));
  Pair pair(fabric);
  pair.connect_and_wait();
  const RdmaCounters& counters = fabric.transport().counters();
  for (int i = 1; i <= 4; ++i) {
    fabric.fake().hold_reads(UINT32_MAX);
    const auto region = lend(fabric, pair);
    const std::uint64_t sends = counters.sends;
    REQUIRE(fabric.run_until([&] { return counters.sends >= sends + kProbes; }, kLimit));  // of both ends
    fabric.fake().finish_reads();
    REQUIRE(fabric.run_until([&] { return pair.server.messages == i; }, kLimit));
    REQUIRE(fabric.run_until([&] { return pair.client.sent.size() == static_cast<std::size_t>(i); }, kLimit));
  }
  CHECK(pair.client.closed + pair.server.closed == 0);
}

TEST_CASE(
    "a peer that makes no buffer free and says nothing is lost, though its device has taken everything") {
  RdmaFakeFabric fabric({}, impatient(8));
  End end;
  auto listener = fabric.transport().listen(fabric.loop(), fabric.any_endpoint(),
                                            [&](auto accepted) { end.attach(std::move(accepted)); });
  REQUIRE(listener.ok());
  const auto peer = fabric.raw_connect((*listener)->endpoint());
  REQUIRE(fabric.run_until([&] { return end.writable > 0; }, kLimit));
  const auto small = pattern(4000, 2);
  for (std::uint64_t i = 1; i <= 200; ++i)
    end.send(push_pull(i), small, i);
  REQUIRE(fabric.run_until([&] { return end.closed == 1; }, kLimit));
  CHECK(end.end.code == ErrorCode::peer_lost);
  CHECK_THAT(end.end.message, Contains("lost: the peer has made no buffer free and said nothing for 40ms"));
  CHECK(fabric.transport().counters().sends == RdmaOptions().buffers - 1);
}

}  // namespace
}  // namespace bps::conformance

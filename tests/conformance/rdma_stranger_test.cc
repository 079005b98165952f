// A peer that has the key of memory, and has not been lent anything.
#include <algorithm>
#include <optional>

#include "proto/transport/rdma/rdma_channel.h"
#include "proto/transport/rdma/rdma_transport.h"
#include "tests/conformance/rdma_verbs.h"
#include "tests/conformance/support.h"

namespace bps::conformance {
namespace {

class Stranger {
 public:
  Stranger(Fabric& fabric, const Endpoint& endpoint, std::size_t bytes) : fabric_(fabric) {
    const auto verbs = verbs_of(fabric);
    auto link = verbs->connect(numeric_address(endpoint).at(0), 5000);
    REQUIRE(link.ok());
    channel_ = std::make_unique<RdmaChannel>(std::move(*link), options_, counters_);
    await(VerbsNews::Kind::resolved);
    auto block = RdmaBlock::make(verbs, channel_->link().device(), RdmaChannel::ring_bytes(options_), bytes,
                                 counters_);
    REQUIRE(block.ok());
    block_ = std::move(*block);
    REQUIRE(channel_->prepare(block_).ok());
    REQUIRE(channel_->link().connect(encode_rdma_hello(channel_->hello())).ok());
    const auto hello = decode_rdma_hello(await(VerbsNews::Kind::established).private_data);
    REQUIRE(hello.ok());
    channel_->on_hello(*hello);
    channel_->established();
  }

  void send(std::span<std::byte> bytes) {
    WorkRequest request;
    request.in_line = true;
    request.local = bytes.data();
    request.bytes = static_cast<std::uint32_t>(bytes.size());
    REQUIRE(channel_->link().post(request).ok());
  }

  // Whether all of it could be read.
  bool reads(const Region& region) {
    const auto& registered = dynamic_cast<const RdmaRegion&>(region);
    const auto key = registered.remote_key(channel_->link().device());
    REQUIRE(key.has_value());
    channel_->post_read(block_->incoming().data(), static_cast<std::uint32_t>(region.bytes().size()),
                        reinterpret_cast<std::uintptr_t>(region.bytes().data()), *key);
    REQUIRE(fabric_.run_until(
        [&] {
          channel_->poll();
          return channel_->reads_done() > 0 || channel_->has_failed();
        },
        kLimit));
    const bool arrived = std::ranges::equal(block_->incoming().first(region.bytes().size()), region.bytes());
    CHECK(arrived == (channel_->take_reads_done() == 1));
    return arrived;
  }

 private:
  VerbsNews await(VerbsNews::Kind kind) {
    std::optional<VerbsNews> news;
    REQUIRE(fabric_.run_until([&] { return (news = channel_->link().next_news()).has_value(); }, kLimit));
    REQUIRE(news->kind == kind);
    return *news;
  }

  Fabric& fabric_;
  const RdmaOptions options_;
  RdmaCounters counters_;
  std::shared_ptr<RdmaBlock> block_;
  std::unique_ptr<RdmaChannel> channel_;
};

TEST_CASE("who knows a key can READ once something has been lent to it, not before") {
  const bool is_lent = GENERATE(false, true);
  const auto fabric = make_fabric();
  End end;
  auto listener = fabric->transport().listen(fabric->loop(), fabric->any_endpoint(),
                                             [&](auto accepted) { end.attach(std::move(accepted)); });
  REQUIRE(listener.ok());
  auto region = fabric->transport().allocate(10'000);
  REQUIRE(region.ok());
  const auto data = pattern(10'000, 1);
  std::copy(data.begin(), data.end(), (*region)->bytes().begin());
  const auto small = pattern(1000, 2);
  {
    Stranger stranger(*fabric, (*listener)->endpoint(), 10'000);
    REQUIRE(fabric->run_until([&] { return end.writable > 0; }, kLimit));
    if (is_lent) end.send(push_pull(1), {(*region)->bytes(), region->get()}, 1);
    end.send(push_pull(2), small, 2);
    REQUIRE(fabric->run_until([&] { return end.sent.size() == 1; }, kLimit));
    CHECK(stranger.reads(**region) == is_lent);
  }
  REQUIRE(fabric->run_until([&] { return end.closed == 1; }, kLimit));
}

TEST_CASE("whose SENDs make no sense has broken a rule") {
  const auto fabric = make_fabric();
  End end;
  auto listener = fabric->transport().listen(fabric->loop(), fabric->any_endpoint(),
                                             [&](auto accepted) { end.attach(std::move(accepted)); });
  REQUIRE(listener.ok());
  Stranger stranger(*fabric, (*listener)->endpoint(), 10'000);
  auto head = encode_rdma_head({0, false});
  SECTION("a head that is too short") { stranger.send(std::span(head).first(4)); }
  SECTION("more buffers made free than were used") {
    head = encode_rdma_head({1000, false});
    stranger.send(head);
  }
  REQUIRE(fabric->run_until([&] { return end.closed == 1; }, kLimit));
  CHECK(end.end.code == ErrorCode::protocol);
}

}  // namespace
}  // namespace bps::conformance

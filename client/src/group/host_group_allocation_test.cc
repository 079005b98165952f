// In steady state a partition that is summed and handed out on a host costs no allocation.
#include "proto/transport/stream/echo_allocations.h"
#if BPS_COUNTS_ALLOCATIONS

#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "client/src/group/host_group.h"
#include "proto/transport/shm/shm_transport.h"

namespace bps {
namespace {

constexpr std::uint32_t kPartitions = 6;

// One of two members: begins each round as soon as the last one has ended here.
class Member final : public LocalGroup::Owner, public ConnectionHandler {
 public:
  Member(EventLoop& loop, ShmTransport& transport, std::uint32_t member, std::uint32_t elements,
         bool in_region)
      : group_(loop, transport, {.job_run = JobRun{1}, .ranks = {Rank{0}, Rank{1}}, .member = member}, *this),
        own_(group_.allocate(kPartitions * 2 * elements * 4).value()),
        region_(transport.allocate(kPartitions * 2 * elements * 4).value()),
        ordinary_(kPartitions * 2 * elements * 4) {
    std::byte* const memory = in_region ? region_->bytes().data() : ordinary_.data();
    for (std::uint32_t i = 0; i < kPartitions; ++i) {
      LocalPiece& piece = pieces_.emplace_back();
      piece.partition = PartitionId{i};
      piece.owner = i % 2;
      piece.elements = elements;
      piece.in = memory + 2 * i * elements * 4;
      piece.in_home = in_region ? region_.get() : nullptr;
      piece.out = memory + (2 * i + 1) * elements * 4;
      if (piece.owner != member) continue;
      piece.sum = own_->bytes().data() + 2 * i * elements * 4;
      piece.answer = piece.sum + elements * 4;
      piece.home = own_.get();
    }
  }

  void start(std::unique_ptr<Connection> connection) {
    connection_ = std::move(connection);
    connection_->start(*this);
    begin();
  }
  const int& rounds() const { return rounds_; }

  void on_summed(std::uint64_t number, std::size_t) override {
    if (++summed_ % (kPartitions / 2) == 0) group_.spread(collective(number + 1), pieces_);
  }
  void on_ended(std::uint64_t, const Status& status) override {
    if (!status.ok()) FAIL(status.error().message);
    if (++ended_ % 2 != 0) return;
    ++rounds_;
    begin();
  }
  void on_broken(const Error& error) override { FAIL(error.message); }
  void send(std::uint32_t, const Message& message, Payload payload, std::uint64_t cookie) override {
    connection_->send(message, payload, cookie);
  }

  std::byte* on_payload(const Message& message, std::uint64_t bytes) override {
    return group_.payload(peer(), message, bytes);
  }
  void on_message(Message& message, std::span<std::byte> payload) override {
    if (!group_.message(peer(), message, payload).ok()) FAIL("a message was refused");
  }
  bool on_lent(Message& message, LentPayload& payload) override {
    return *group_.lent(peer(), message, payload);
  }
  void on_sent(std::uint64_t cookie) override { group_.sent(peer(), cookie); }
  void on_closed(const Error& error) override { FAIL(error.message); }

 private:
  std::uint32_t peer() const { return pieces_[0].sum != nullptr ? 1 : 0; }
  Collective collective(std::uint64_t number) const {
    return {number,
            TensorId{0},
            Round{static_cast<std::uint64_t>(rounds_)},
            RoundKind::push_pull,
            Operation::sum,
            {},
            MemoryKind::host};
  }
  void begin() { group_.reduce(collective(2 * static_cast<std::uint64_t>(rounds_)), pieces_); }

  HostGroup group_;
  std::shared_ptr<Region> own_, region_;
  std::vector<std::byte> ordinary_;
  std::vector<LocalPiece> pieces_;
  std::unique_ptr<Connection> connection_;
  std::size_t summed_ = 0, ended_ = 0;
  int rounds_ = 0;
};

TEST_CASE("host group: a partition costs no allocation in steady state, whatever memory it is in") {
  for (const std::uint32_t elements : {200, 4096}) {
    for (const bool in_region : {true, false}) {
      INFO(elements << " elements, region " << in_region);
      AsioLoop loop;
      ShmTransport transport;
      Member first(loop, transport, 0, elements, in_region), second(loop, transport, 1, elements, in_region);
      const Endpoint endpoint{"bps-host-allocation-test-" + std::to_string(::getpid()), 0};
      auto listener =
          transport.listen(loop, endpoint, [&](std::unique_ptr<Connection> c) { first.start(std::move(c)); });
      REQUIRE(listener.ok());
      second.start(transport.connect(loop, endpoint, std::chrono::seconds(5)));
      CHECK(testing::allocations_of_echoes(loop, first.rounds()) == 0);
    }
  }
  CHECK(testing::allocations > 0);
}

}  // namespace
}  // namespace bps

#endif  // BPS_COUNTS_ALLOCATIONS

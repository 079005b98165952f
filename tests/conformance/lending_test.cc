// Payloads are lent: read in place, given back, withdrawn. Linked only where the transport lends.
#include <algorithm>

#include "tests/conformance/support.h"

namespace bps::conformance {
namespace {

// A pair whose server keeps what it is lent, and a region of the client's to send from.
struct Lending {
  explicit Lending(bool scarce_too = false)
      : fabric(make_fabric()), pair(*fabric), bytes(fabric->lent_bytes()) {
    REQUIRE(bytes > 0);
    auto made = fabric->transport().allocate(kPayloads * bytes);
    REQUIRE(made.ok());
    region = std::move(made).value();
    for (std::size_t i = 0; i < kPayloads; ++i) {
      const auto data = pattern(bytes, i);
      std::copy(data.begin(), data.end(), piece(i).begin());
    }
    pair.server.at_lent = [this, scarce_too](Message& message, LentPayload& payload) {
      CHECK((scarce_too || !payload.scarce()));
      CHECK(payload.intact());
      numbers.push_back(number_of(message));
      held.push_back(std::move(payload));
      return true;
    };
    pair.connect_and_wait();
  }
  std::span<std::byte> piece(std::size_t index) { return region->bytes().subspan(index * bytes, bytes); }
  void send(std::size_t index) {
    pair.client.send(push_pull(index), {piece(index), region.get()}, index + 1);
  }
  bool run(const std::function<bool()>& done) { return fabric->run_until(done, kLimit); }
  bool right(std::size_t index, std::size_t held_at) const {
    const auto data = pattern(bytes, index);
    return std::ranges::equal(held[held_at].bytes(), data);
  }

  static constexpr std::size_t kPayloads = 6;
  std::unique_ptr<Fabric> fabric;
  Pair pair;
  std::size_t bytes;
  std::shared_ptr<Region> region;
  std::vector<std::uint64_t> numbers;
  std::vector<LentPayload> held;
};

TEST_CASE("what is lent out of a region is the sender's again only when it is given back") {
  Lending lending;
  for (std::size_t i = 0; i < Lending::kPayloads; ++i)
    lending.send(i);
  REQUIRE(lending.run([&] { return lending.held.size() == Lending::kPayloads; }));
  CHECK(lending.pair.server.messages + lending.pair.server.payload_calls == 0);
  for (std::size_t i = 0; i < Lending::kPayloads; ++i) {
    CHECK(lending.numbers[i] == i);
    CHECK(lending.right(i, i));
  }
  lending.pair.settle();
  CHECK(lending.pair.client.sent.empty());
  CHECK(lending.pair.client.connection->queued_bytes() == 0);
  // In any order.
  for (const std::size_t i : {3u, 0u, 5u}) {
    lending.held[i].reset();
    const std::size_t before = lending.pair.client.sent.size();
    REQUIRE(lending.run([&] { return lending.pair.client.sent.size() == before + 1; }));
    CHECK(lending.pair.client.sent.back() == i + 1);
  }
  // What has come back may be used for the next at once.
  const auto data = pattern(lending.bytes, 77);
  std::copy(data.begin(), data.end(), lending.piece(0).begin());
  lending.send(0);
  REQUIRE(lending.run([&] { return lending.held.size() == Lending::kPayloads + 1; }));
  CHECK(lending.right(77, Lending::kPayloads));
  CHECK(lending.right(1, 1));
  lending.held.clear();
  REQUIRE(lending.run([&] { return lending.pair.client.sent.size() == Lending::kPayloads + 1; }));
  CHECK(lending.pair.client.closed + lending.pair.server.closed == 0);
}

TEST_CASE("a handler that is done with a lent payload at once need not move from it") {
  Lending lending;
  lending.pair.server.at_lent = [&](Message& message, LentPayload& payload) {
    lending.numbers.push_back(number_of(message));
    return payload.bytes().size() == lending.bytes;
  };
  for (std::size_t i = 0; i < 3; ++i)
    lending.send(i);
  REQUIRE(lending.run([&] { return lending.pair.client.sent.size() == 3; }));
  CHECK(lending.numbers == std::vector<std::uint64_t>{0, 1, 2});
}

TEST_CASE("who does not want a payload lent has it copied, and order is kept between all kinds") {
  Lending lending;
  const auto take = lending.pair.server.at_lent;
  std::vector<std::uint64_t> order;
  lending.pair.server.at_lent = [&](Message& message, LentPayload& payload) {
    if (number_of(message) % 2 == 0) return false;
    order.push_back(number_of(message));
    return take(message, payload);
  };
  lending.pair.server.at_message = [&](Message& message, std::span<std::byte>) {
    order.push_back(number_of(message));
  };
  for (std::size_t i = 0; i < Lending::kPayloads; ++i) {
    lending.send(i);
    lending.pair.client.send(heartbeat(100 + i));
  }
  REQUIRE(lending.run([&] { return order.size() == 2 * Lending::kPayloads; }));
  for (std::size_t i = 0; i < Lending::kPayloads; ++i) {
    CHECK(order[2 * i] == i);
    CHECK(order[2 * i + 1] == 100 + i);
  }
  CHECK(lending.pair.server.offers == static_cast<int>(Lending::kPayloads));
  CHECK((lending.pair.server.received[0].payload == pattern(lending.bytes, 0)));
  REQUIRE(lending.run([&] { return lending.pair.client.sent.size() == Lending::kPayloads / 2; }));
  lending.held.clear();
  REQUIRE(lending.run([&] { return lending.pair.client.sent.size() == Lending::kPayloads; }));
}

TEST_CASE("ordinary memory is lent, too; what does not fit at a time waits in the queue") {
  Lending lending(/*scarce_too=*/true);
  constexpr std::size_t kMany = 200;
  const auto data = pattern(lending.bytes, 9);
  for (std::size_t i = 0; i < kMany; ++i)
    lending.pair.client.send(push_pull(i), data, i + 1);
  std::size_t taken = 0;
  while (taken < kMany) {
    REQUIRE(lending.run([&] { return !lending.held.empty(); }));
    lending.pair.settle();
    taken += lending.held.size();
    for (std::size_t i = 0; i < lending.held.size(); ++i)
      REQUIRE(lending.right(9, i));
    lending.held.clear();
  }
  REQUIRE(lending.run([&] { return lending.pair.client.sent.size() == kMany; }));
  CHECK(lending.pair.client.connection->queued_bytes() == 0);
  for (std::size_t i = 0; i < kMany; ++i)
    CHECK(lending.numbers[i] == i);
}

TEST_CASE("a sender that closes withdraws what it has lent, and may use the memory at once") {
  const bool destroy = GENERATE(true, false);
  Lending lending;
  lending.send(0);
  lending.send(1);
  REQUIRE(lending.run([&] { return lending.held.size() == 2; }));
  CHECK(lending.held[0].intact());
  lending.held[1].reset();
  if (destroy) {
    lending.pair.client.destroy();
  } else {
    lending.pair.client.close();
  }
  CHECK_FALSE(lending.held[0].intact());
  std::ranges::fill(lending.piece(0), std::byte{0});
  std::size_t sum = 0;  // it can still be read, whatever it holds
  for (const std::byte byte : lending.held[0].bytes())
    sum += static_cast<std::size_t>(byte);
  CHECK(sum <= 255 * lending.bytes);
  REQUIRE(lending.run([&] { return lending.pair.server.closed == 1; }));
  CHECK(lending.held[0].bytes().size() == lending.bytes);
  lending.held.clear();
  lending.pair.settle();
}

TEST_CASE("a lent payload outlives the receiver's connection; the sender hears of the close alone") {
  Lending lending;
  lending.send(0);
  REQUIRE(lending.run([&] { return lending.held.size() == 1; }));
  lending.pair.server.destroy();
  CHECK(lending.held[0].bytes().size() == lending.bytes);
  REQUIRE(lending.run([&] { return lending.pair.client.closed == 1; }));
  CHECK_FALSE(lending.held[0].intact());
  lending.held.clear();
  lending.pair.settle();
  CHECK(lending.pair.client.sent.empty());
}

TEST_CASE("a handler may end its connection when a payload is offered, with and without taking it") {
  const bool takes = GENERATE(true, false);
  const bool destroy = GENERATE(true, false);
  Lending lending;
  const auto take = lending.pair.server.at_lent;
  lending.pair.server.at_lent = [&](Message& message, LentPayload& payload) {
    if (takes) take(message, payload);
    if (destroy) {
      lending.pair.server.destroy();
    } else {
      lending.pair.server.close();
    }
    return takes;
  };
  for (std::size_t i = 0; i < 3; ++i)
    lending.send(i);
  REQUIRE(lending.run([&] { return lending.pair.client.closed == 1; }));
  lending.pair.settle();
  CHECK(lending.pair.server.offers == 1);
  CHECK(lending.pair.server.payload_calls + lending.pair.server.messages == 0);
}

}  // namespace
}  // namespace bps::conformance

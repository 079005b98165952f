// What only RDMA has: registrations, signals, queue pairs that break, devices that go, slabs that fill. Over
// devices inside the process, which do all that on demand.
#include <algorithm>
#include <optional>

#include "proto/base/log/log.h"
#include "proto/transport/lending/loan_records.h"
#include "proto/transport/rdma/rdma_inbox.h"
#include "proto/transport/rdma/rdma_records.h"
#include "proto/wire/codec.h"
#include "tests/conformance/rdma_fake_fabric.h"
#include "tests/conformance/support.h"

namespace bps::conformance {
namespace {

using Catch::Contains;

FakeOptions shuffled(std::uint64_t seed) {
  FakeOptions options;
  options.shuffle = true;
  options.seed = seed;
  return options;
}

std::shared_ptr<Region> region_of(RdmaFakeFabric& fabric, std::size_t bytes, std::uint64_t seed) {
  auto region = fabric.transport().allocate(bytes);
  REQUIRE(region.ok());
  const auto data = pattern(bytes, seed);
  std::copy(data.begin(), data.end(), (*region)->bytes().begin());
  return std::move(region).value();
}

std::vector<std::byte> lent_frame(std::uint64_t bytes, const LoanReference& reference) {
  Encoder encoder;
  std::vector<std::byte> frame;
  append_lent(frame, encoder.encode(push_pull(1), bytes), bytes, reference);
  return frame;
}

LoanReference reference_to(RdmaFakeFabric& fabric, const Region& region) {
  const auto key = dynamic_cast<const RdmaRegion&>(region).remote_key(fabric.fake().device());
  REQUIRE(key.has_value());
  return {1, reinterpret_cast<std::uintptr_t>(region.bytes().data()), *key, false};
}

TEST_CASE("connections that come and go, in every state, leave nothing behind") {
  RdmaFakeFabric fabric(shuffled(3));
  const auto payload = pattern(200'000, 1);
  for (int i = 0; i < 50; ++i) {
    Pair pair(fabric);
    pair.connect();
    for (std::uint64_t k = 1; k <= 3; ++k)
      pair.client.send(push_pull(k), payload, k);
    int turns = 0;
    REQUIRE(
        fabric.run_until([&] { return ++turns > i || pair.client.closed + pair.server.closed > 0; }, kLimit));
    End& first = i % 2 == 0 ? pair.client : pair.server;
    if (first.connection) first.destroy();
    pair.settle();
  }
  CHECK(fabric.fake().links() == 0);
  CHECK(fabric.fake().queue_pairs() == 0);
  CHECK(fabric.fake().memories() == 0);
}

TEST_CASE("a request that goes wrong ends its connection with what went wrong, and no other") {
  for (std::uint32_t status = 1; status < kCompletionStatusCount; ++status) {
    if (status == kCompletionFlushed) continue;
    INFO(describe_completion(status));
    RdmaFakeFabric fabric;
    std::vector<std::unique_ptr<End>> servers;
    auto listener = fabric.transport().listen(fabric.loop(), fabric.any_endpoint(), [&](auto accepted) {
      servers.push_back(std::make_unique<End>());
      servers.back()->attach(std::move(accepted));
    });
    REQUIRE(listener.ok());
    End clients[2];
    for (End& client : clients) {
      client.attach(fabric.transport().connect(fabric.loop(), (*listener)->endpoint(), kLimit));
      REQUIRE(fabric.run_until([&] { return client.writable > 0; }, kLimit));
    }
    fabric.fake().fail_next_request(status);
    clients[0].send(heartbeat(1));
    REQUIRE(fabric.run_until([&] { return clients[0].closed == 1; }, kLimit));
    CHECK(clients[0].end.code == ErrorCode::peer_lost);
    CHECK_THAT(clients[0].end.message, Contains(describe_completion(status)));
    CHECK_THAT(clients[0].end.message, Contains(clients[0].connection->peer()));
    REQUIRE(fabric.run_until([&] { return servers[0]->closed == 1; }, kLimit));
    clients[1].send(heartbeat(2));
    REQUIRE(fabric.run_until([&] { return servers[1]->messages == 1; }, kLimit));
    const RdmaCounters& counters = fabric.transport().counters();
    CHECK(counters.failed_requests == 1);
    CHECK(counters.unanswered_requests == (status == kCompletionUnanswered ? 1 : 0));
    CHECK(counters.unready_receivers == (status == kCompletionReceiverNotReady ? 1 : 0));
    CHECK(fabric.fake().queue_pairs() == 2);
  }
}

TEST_CASE("a READ whose completion is taken while writing is delivered") {
  RdmaOptions options;
  options.probe_interval = 1h;
  for (std::uint32_t polls = 1; polls < 12; ++polls) {
    INFO("polls " << polls);
    RdmaFakeFabric fabric({}, options);
    const auto region = region_of(fabric, 10'000, 1);
    const auto small = pattern(4000, 2);
    End end;
    auto listener = fabric.transport().listen(fabric.loop(), fabric.any_endpoint(),
                                              [&](auto accepted) { end.attach(std::move(accepted)); });
    REQUIRE(listener.ok());
    const auto peer = fabric.raw_connect((*listener)->endpoint());
    REQUIRE(fabric.run_until([&] { return end.writable > 0; }, kLimit));
    // More than the peer has buffers, and it frees none.
    for (std::uint64_t i = 1; i <= 200; ++i)
      end.send(push_pull(i), small, i);
    const RdmaCounters& counters = fabric.transport().counters();
    REQUIRE(fabric.run_until([&] { return counters.sends + 1 == options.buffers; }, kLimit));
    // More frames than are kept behind a payload that is being read.
    fabric.fake().hold_reads(UINT32_MAX);
    const int frames = static_cast<int>(RdmaInbox::kMaxFrames) + 10;
    auto bytes = lent_frame(region->bytes().size(), reference_to(fabric, *region));
    Encoder encoder;
    const auto beat = encoder.encode(heartbeat(1), 0);
    for (int i = 0; i < frames; ++i)
      bytes.insert(bytes.end(), beat.begin(), beat.end());
    peer->send(bytes);
    REQUIRE(fabric.run_until([&] { return counters.reads == 1; }, kLimit));
    // There is room at the peer again, which is used up at once; meanwhile the READ is done.
    fabric.fake().hold_reads(polls);
    peer->receive(40 * 4096);
    int turns = 0;
    fabric.run_until([&] { return ++turns > 50; }, kLimit);
    fabric.fake().finish_reads();
    REQUIRE(fabric.run_until([&] { return end.messages == frames + 1; }, kLimit));
  }
}

TEST_CASE("memory that cannot be pinned is told to whoever connects, on either side") {
  // Each end needs two registrations; the connecting one is first.
  const std::uint32_t fails = GENERATE(1u, 2u, 3u, 4u);
  RdmaFakeFabric fabric;
  Pair pair(fabric);
  fabric.fake().fail_registrations(fails);
  std::optional<ExpectLog> expected;
  if (fails > 2) expected.emplace("cannot pin");
  pair.connect();
  REQUIRE(fabric.run_until([&] { return pair.client.closed == 1; }, kLimit));
  CHECK(pair.client.end.code == ErrorCode::out_of_memory);
  CHECK_THAT(pair.client.end.message, Contains("cannot pin"));
  if (fails > 2) CHECK_THAT(pair.client.end.message, Contains("rejected by the peer"));
  CHECK(pair.server.connection == nullptr);
  CHECK(fabric.fake().memories() == 0);
  // It is over when there is memory again.
  fabric.fake().fail_registrations(0);
  End second;
  second.attach(fabric.transport().connect(fabric.loop(), pair.listener->endpoint(), kLimit));
  second.send(heartbeat(1));
  REQUIRE(fabric.run_until([&] { return pair.server.messages == 1; }, kLimit));
}

TEST_CASE("an address without a device, and a peer that does not answer, are unreachable") {
  RdmaFakeFabric fabric;
  End nowhere;
  nowhere.attach(fabric.transport().connect(fabric.loop(), {"10.99.0.1", 1}, kLimit));
  REQUIRE(fabric.run_until([&] { return nowhere.closed == 1; }, kLimit));
  CHECK(nowhere.end.code == ErrorCode::unreachable);
  CHECK_THAT(nowhere.end.message, Contains("10.99.0.1") && Contains("no RDMA device"));

  Pair pair(fabric);
  fabric.fake().fall_silent();
  pair.client.attach(fabric.transport().connect(fabric.loop(), pair.listener->endpoint(), 20ms));
  REQUIRE(fabric.run_until([&] { return pair.client.closed == 1; }, kLimit));
  CHECK(pair.client.end.code == ErrorCode::unreachable);
  CHECK_THAT(pair.client.end.message, Contains("no answer within 20ms"));
}

TEST_CASE("a device that is removed takes its connections with it, and says so") {
  RdmaFakeFabric fabric;
  Pair pair(fabric);
  const ExpectLog expected("nobody can connect over it until it is back");
  pair.connect_and_wait();
  const auto payload = pattern(500'000, 1);
  pair.client.send(push_pull(1), payload, 1);
  fabric.fake().remove_device();
  REQUIRE(fabric.run_until([&] { return pair.client.closed + pair.server.closed == 2; }, kLimit));
  CHECK_THAT(pair.client.end.message, Contains("RDMA device fake0 was removed"));
  CHECK_THAT(pair.server.end.message, Contains("RDMA device fake0 was removed"));
  End late;
  late.attach(fabric.transport().connect(fabric.loop(), pair.listener->endpoint(), kLimit));
  REQUIRE(fabric.run_until([&] { return late.closed == 1; }, kLimit));
}

TEST_CASE("a device that is removed while somebody connects is named as the cause") {
  RdmaFakeFabric fabric;
  Pair pair(fabric);
  const ExpectLog expected("nobody can connect over it until it is back");
  fabric.fake().fall_silent();
  pair.connect();
  REQUIRE(fabric.run_until([&] { return fabric.fake().queue_pairs() == 1; }, kLimit));
  fabric.fake().remove_device();
  REQUIRE(fabric.run_until([&] { return pair.client.closed == 1; }, kLimit));
  CHECK(pair.client.end.code == ErrorCode::unreachable);
  CHECK_THAT(pair.client.end.message, Contains("the RDMA device was removed"));
}

TEST_CASE("what went wrong before a connection is started is the first thing that did") {
  RdmaFakeFabric fabric;
  auto listener = fabric.fake().listen(numeric_address(fabric.any_endpoint()).at(0), 1);
  REQUIRE(listener.ok());
  const Endpoint endpoint = endpoint_of((*listener)->address());
  auto connection = fabric.transport().connect(fabric.loop(), endpoint, kLimit);
  std::unique_ptr<VerbsLink> link;
  const auto is_asked = [&] {
    auto request = (*listener)->next_request();
    if (request.ok() && request->has_value()) link = std::move((*request)->link);
    return link != nullptr;
  };
  REQUIRE(fabric.run_until(is_asked, kLimit));
  REQUIRE(link->accept(std::vector<std::byte>(kRdmaHelloBytes)).ok());
  link.reset();
  int turns = 0;
  fabric.run_until([&] { return ++turns > 20; }, kLimit);
  End end;
  end.attach(std::move(connection));
  REQUIRE(fabric.run_until([&] { return end.closed == 1; }, kLimit));
  CHECK_THAT(end.end.message, Contains("does not speak the bps protocol"));
}

TEST_CASE("one connection delivers so much in a turn of its loop, however much has come") {
  RdmaOptions options;
  options.turn_bytes = 128 * 1024;
  RdmaFakeFabric fabric({}, options);
  Pair pair(fabric);
  pair.connect_and_wait();
  pair.server.keep = false;
  const auto region = region_of(fabric, 32 * 1024, 1);
  constexpr int kFrames = 200;
  for (std::uint64_t i = 1; i <= kFrames; ++i)
    pair.client.send(push_pull(i), {region->bytes(), region.get()}, i);
  int before = 0, most = 0;
  REQUIRE(fabric.run_until(
      [&] {
        most = std::max(most, pair.server.messages - before);
        before = pair.server.messages;
        return before == kFrames;
      },
      kLimit));
  CHECK(static_cast<std::size_t>(most) * region->bytes().size() <= 4 * options.turn_bytes);
}

void send_both_ways(Fabric& fabric, Pair& pair) {
  const auto large = pattern(100'000, 1), small = pattern(3000, 2);
  for (std::uint64_t i = 1; i <= 60; ++i) {
    for (End* const end : {&pair.client, &pair.server})
      end->send(push_pull(i), i % 3 == 0 ? small : large, i);
  }
  REQUIRE(fabric.run_until([&] { return pair.client.messages == 60 && pair.server.messages == 60; }, kLimit));
  for (const End* const end : {&pair.client, &pair.server}) {
    for (std::size_t i = 0; i < 60; ++i)
      CHECK((end->received[i].payload == (i % 3 == 2 ? small : large)));
  }
}

TEST_CASE("short queues are filled as far as they go, and too short ones are told") {
  FakeOptions fake = shuffled(GENERATE(range(1, 6)));
  fake.limits = {GENERATE(12u, 24u, 60u), 40, 16, 16};
  RdmaFakeFabric fabric(fake);
  Pair pair(fabric);
  pair.connect_and_wait();
  send_both_ways(fabric, pair);
}

TEST_CASE("a device whose queues are too short for anything is unreachable, and why") {
  FakeOptions fake;
  fake.limits = {4, 8, 16, 16};
  RdmaFakeFabric fabric(fake);
  Pair pair(fabric);
  pair.connect();
  REQUIRE(fabric.run_until([&] { return pair.client.closed == 1; }, kLimit));
  CHECK(pair.client.end.code == ErrorCode::unreachable);
  CHECK_THAT(pair.client.end.message, Contains("queues of RDMA device fake0 are too short, for 4 requests"));
}

TEST_CASE("no more READs are under way than the peer's device serves, nor than the peer says") {
  FakeOptions fake = shuffled(GENERATE(range(1, 6)));
  const bool by_device = GENERATE(false, true);
  if (by_device) fake.limits.reads_in = 3;
  RdmaFakeFabric fabric(fake);
  RdmaOptions options;
  if (!by_device) options.reads = 3;
  RdmaTransport other(fabric.verbs(), options);
  Pair pair(fabric);
  auto listener = other.listen(fabric.loop(), fabric.any_endpoint(),
                               [&](auto accepted) { pair.server.attach(std::move(accepted)); });
  REQUIRE(listener.ok());
  pair.client.attach(fabric.transport().connect(fabric.loop(), (*listener)->endpoint(), kLimit));
  REQUIRE(fabric.run_until([&] { return pair.server.connection && pair.client.writable > 0; }, kLimit));
  send_both_ways(fabric, pair);
  CHECK(fabric.fake().most_reads() <= 3);
  CHECK(fabric.fake().most_reads() > 1);
  pair.client.destroy();
  pair.server.destroy();
  listener->reset();
}

// Its devices are gone as soon as they have been listed.
class Fleeting final : public Verbs {
 public:
  explicit Fleeting(std::shared_ptr<FakeFabric> fabric) : fabric_(std::move(fabric)) {}
  Result<std::vector<VerbsDevice*>> devices() override {
    auto found = fabric_->devices();
    fabric_->remove_device();
    return found;
  }
  Result<std::unique_ptr<VerbsLink>> connect(const SocketAddress& address, int timeout_ms) override {
    return fabric_->connect(address, timeout_ms);
  }
  Result<std::unique_ptr<VerbsListener>> listen(const SocketAddress& address, int backlog) override {
    return fabric_->listen(address, backlog);
  }

 private:
  const std::shared_ptr<FakeFabric> fabric_;
};

TEST_CASE("memory is allocated though a device goes away meanwhile") {
  RdmaTransport transport(std::make_shared<Fleeting>(std::make_shared<FakeFabric>()));
  CHECK(transport.allocate(10'000).ok());
}

TEST_CASE("a device that was removed is let go, and used again when it is back") {
  RdmaOptions options;
  options.listen_again_every = 1ms;
  RdmaFakeFabric fabric({}, options);
  const auto region = region_of(fabric, 50'000, 3);
  std::vector<std::unique_ptr<End>> servers;
  std::vector<LentPayload> held;
  auto listener = fabric.transport().listen(fabric.loop(), fabric.any_endpoint(), [&](auto accepted) {
    End& server = *servers.emplace_back(std::make_unique<End>());
    if (servers.size() == 1) {
      server.at_lent = [&](Message&, LentPayload& payload) {
        held.push_back(std::move(payload));
        return true;
      };
    }
    server.attach(std::move(accepted));
  });
  REQUIRE(listener.ok());
  auto client = std::make_unique<End>();
  const auto connect = [&] {
    client = std::make_unique<End>();
    client->attach(fabric.transport().connect(fabric.loop(), (*listener)->endpoint(), kLimit));
  };
  connect();
  client->send(push_pull(1), {region->bytes(), region.get()}, 1);
  REQUIRE(fabric.run_until([&] { return held.size() == 1; }, kLimit));

  const ExpectLog expected("nobody can connect over it until it is back");
  fabric.fake().remove_device();
  CHECK(fabric.fake().memories() > 0);  // those that have not heard of it use them
  REQUIRE(fabric.run_until([&] { return client->closed + servers[0]->closed == 2; }, kLimit));
  CHECK(fabric.fake().links() == 0);
  CHECK(fabric.fake().memories() == 0);  // whatever is held of the memory
  CHECK(std::ranges::equal(held[0].bytes(), region->bytes()));
  const auto meanwhile = region_of(fabric, 20'000, 5);
  connect();
  REQUIRE(fabric.run_until([&] { return client->closed == 1; }, kLimit));
  CHECK_THAT(client->end.message, Contains("no RDMA device"));

  fabric.fake().return_device();
  const auto connected = [&] {
    if (client->closed > 0) connect();  // nobody listens yet
    return client->writable > 0;
  };
  REQUIRE(fabric.run_until(connected, kLimit));
  // Memory that was registered with the old one, or with none, is copied.
  client->send(push_pull(2), {region->bytes(), region.get()}, 2);
  client->send(push_pull(3), {meanwhile->bytes(), meanwhile.get()}, 3);
  REQUIRE(fabric.run_until([&] { return servers.back()->messages == 2; }, kLimit));
  CHECK(std::ranges::equal(servers.back()->received[0].payload, region->bytes()));
  CHECK(std::ranges::equal(servers.back()->received[1].payload, meanwhile->bytes()));
}

TEST_CASE("last words arrive while payloads are being read that nobody waits for any more") {
  RdmaFakeFabric fabric(shuffled(GENERATE(range(1, 20))));
  Pair pair(fabric);
  const auto payload = pattern(100'000, 1);
  pair.server.at_message = [&](Message&, std::span<std::byte>) {
    pair.server.connection->send(Refused{ErrorCode::configuration, "no", "go away"});
    pair.server.connection->close_after_flush(kLimit);
    pair.server.destroy();
  };
  bool refused = false;
  pair.client.at_message = [&](Message& message, std::span<std::byte>) {
    refused = std::holds_alternative<Refused>(message);
  };
  pair.connect();
  for (std::uint64_t i = 1; i <= 5; ++i)
    pair.client.send(push_pull(i), payload, i);
  REQUIRE(fabric.run_until([&] { return pair.client.closed == 1; }, kLimit));
  CHECK(refused);
  CHECK_THAT(pair.client.end.message, Contains("closed by the peer"));
}

TEST_CASE("payloads larger than the slab arrive, out of a region and out of ordinary memory") {
  RdmaOptions options;
  options.slab_bytes = 64 * 1024;
  RdmaFakeFabric fabric(shuffled(5), options);
  Pair pair(fabric);
  pair.connect_and_wait();
  const auto region = region_of(fabric, 1'000'003, 7);
  const auto ordinary = pattern(200'001, 8);
  pair.client.send(push_pull(1), {region->bytes(), region.get()}, 1);
  pair.client.send(heartbeat(2));
  pair.client.send(push_pull(3), ordinary, 3);
  pair.client.send(push_pull(4), {region->bytes().first(30'000), region.get()}, 4);
  REQUIRE(
      fabric.run_until([&] { return pair.client.sent.size() == 3 && pair.server.messages == 4; }, kLimit));
  CHECK((pair.server.received[0].payload == pattern(1'000'003, 7)));
  CHECK(pair.server.received[1].number == 2);
  CHECK((pair.server.received[2].payload == ordinary));
  CHECK(pair.server.received[3].number == 4);
}

TEST_CASE("a handler that keeps what it is lent has at most half of the slab, and everything arrives") {
  RdmaOptions options;
  options.slab_bytes = 256 * 1024;
  RdmaFakeFabric fabric(shuffled(9), options);
  Pair pair(fabric);
  std::vector<LentPayload> held;
  std::size_t held_bytes = 0;
  pair.server.at_lent = [&](Message& message, LentPayload& payload) {
    CHECK(payload.scarce());
    CHECK(std::ranges::equal(payload.bytes(), pattern(payload.bytes().size(), number_of(message))));
    held_bytes += payload.bytes().size();
    held.push_back(std::move(payload));
    return true;
  };
  pair.connect_and_wait();
  std::vector<std::vector<std::byte>> payloads;
  for (std::uint64_t i = 0; i < 40; ++i) {
    payloads.push_back(pattern(20'000 + 1000 * i, i));
    pair.client.send(push_pull(i), payloads.back(), i + 1);
  }
  REQUIRE(
      fabric.run_until([&] { return pair.server.messages + static_cast<int>(held.size()) == 40; }, kLimit));
  CHECK(held_bytes <= options.slab_bytes / 2);
  CHECK(held.size() > 1);
  CHECK(pair.server.messages > 1);
  // What is held outlives both connections.
  pair.server.destroy();
  pair.client.destroy();
  CHECK(std::ranges::equal(held[0].bytes(), pattern(held[0].bytes().size(), 0)));
  held.clear();
  CHECK(fabric.fake().memories() == 0);
}

// What a connection says of a peer that sent these bytes.
Error answer_to(RdmaFakeFabric& fabric, const std::vector<std::byte>& bytes) {
  End end;
  auto listener = fabric.transport().listen(fabric.loop(), fabric.any_endpoint(),
                                            [&](auto accepted) { end.attach(std::move(accepted)); });
  REQUIRE(listener.ok());
  const auto peer = fabric.raw_connect((*listener)->endpoint());
  peer->send(bytes);
  REQUIRE(fabric.run_until([&] { return end.closed == 1; }, kLimit));
  CHECK(end.messages == 0);
  return end.end;
}

TEST_CASE("references and records that make no sense end the connection") {
  RdmaFakeFabric fabric;
  const auto region = region_of(fabric, 10'000, 1);
  const LoanReference good = reference_to(fabric, *region);
  const std::uint64_t where = good.where;
  const std::uint32_t key = good.memory;
  const std::string access = describe_completion(10);
  CHECK_THAT(answer_to(fabric, lent_frame(10'000, {1, where, key + 1000, false})).message, Contains(access));
  CHECK_THAT(answer_to(fabric, lent_frame(10'001, {1, where, key, false})).message, Contains(access));
  CHECK_THAT(answer_to(fabric, lent_frame(10'000, {1, where - 1, key, false})).message, Contains(access));
  CHECK_THAT(answer_to(fabric, lent_frame(kMaxPayloadBytes, {1, where, key, false})).message,
             Contains(access));
  CHECK_THAT(answer_to(fabric, lent_frame(8, {1, UINT64_MAX, key, false})).message, Contains(access));

  std::vector<std::byte> bytes;
  const std::uint64_t token = 5;
  append_returned(bytes, {&token, 1});
  CHECK_THAT(answer_to(fabric, bytes).message, Contains("not lent"));
  for (const std::size_t size : {4u, 8u}) {
    bytes.clear();
    FrameSpace frame(bytes, size);
    std::fill_n(frame.header(), size, std::byte{1});
    frame.finish_record();
    const Error error = answer_to(fabric, bytes);
    CHECK(error.code == ErrorCode::protocol);
    CHECK_THAT(error.message, Contains("unknown kind"));
  }
}

}  // namespace
}  // namespace bps::conformance

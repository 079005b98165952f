#include "client/src/group/local_links.h"

#include <catch2/catch.hpp>
#include <deque>

#include "client/src/group/testing/pipe_transport.h"
#include "proto/base/loop/virtual_loop.h"
#include "proto/wire/shm_name.h"

namespace bps::testing {
namespace {

using namespace std::chrono_literals;

// The ranks 3, 4, ... of one host, each with its links.
struct Ranks {
  struct Rank1 final : LocalLinks::Owner {
    void on_links_up() override { ++up; }
    void on_links_failed(const Error& error) override { failure = error; }
    void on_link_down(std::uint32_t member, const std::string& why) override {
      down.emplace_back(member, why);
    }
    std::byte* on_link_payload(std::uint32_t, const Message&, std::uint64_t bytes) override {
      payload.resize(bytes);
      return payload.data();
    }
    Status on_link_message(std::uint32_t member, Message& message, std::span<std::byte> bytes) override {
      heard.emplace_back(member, name_of(message), bytes.size());
      return answer;
    }
    Result<bool> on_link_lent(std::uint32_t, Message&, LentPayload&) override { return false; }
    void on_link_sent(std::uint32_t, std::uint64_t cookie) override { sent.push_back(cookie); }

    int up = 0;
    std::optional<Error> failure;
    std::vector<std::pair<std::uint32_t, std::string>> down;
    std::vector<std::tuple<std::uint32_t, std::string, std::size_t>> heard;
    std::vector<std::uint64_t> sent;
    std::vector<std::byte> payload;
    Status answer;
    std::unique_ptr<LocalLinks> links;
  };

  explicit Ranks(std::uint32_t size, const std::vector<SharedKey>& keys = {}) {
    LocalLinks::Group group;
    group.run = JobRun{0xfe};
    group.host = "gpu-03";
    for (std::uint32_t i = 0; i < size; ++i)
      group.members.push_back({Rank{3 + i}, Incarnation{20 + i}});
    for (std::uint32_t i = 0; i < size; ++i) {
      group.self = i;
      group.key = keys.empty() ? nullptr : keys[i % keys.size()];
      Rank1& rank = ranks.emplace_back();
      rank.links = std::make_unique<LocalLinks>(loop, transport, rank, group, log);
    }
  }
  void open(std::uint32_t i) { ranks[i].links->open(loop.now() + 10s); }

  VirtualLoop loop;
  PipeTransport transport;
  Logger log{"test", LogTarget::to_callback([](auto...) {}, LogLevel::off)};
  std::deque<Rank1> ranks;
};

TEST_CASE("local links: each two ranks are connected once, in whatever order they come") {
  const SharedKey key = GENERATE(0, 1) == 0 ? nullptr : Key::fresh().value();
  Ranks r(4, {key});
  for (const std::uint32_t i : {2u, 0u, 3u, 1u}) {
    for (auto& rank : r.ranks)
      CHECK(rank.up == 0);
    r.open(i);
    r.loop.run_for(100ms);
  }
  for (auto& rank : r.ranks)
    CHECK(rank.up == 1);
  const std::vector<std::byte> bytes(5);
  r.ranks[0].links->send(3, LocalNews{}, bytes, 9);
  r.ranks[3].links->send(0, LocalNews{}, {}, 0);
  r.loop.run_for(1ms);
  CHECK(r.ranks[3].heard == decltype(r.ranks[3].heard){{0, "LocalNews", 5}});
  CHECK(r.ranks[0].heard == decltype(r.ranks[0].heard){{3, "LocalNews", 0}});
  CHECK(r.ranks[0].sent == std::vector<std::uint64_t>{9});

  r.ranks[1].links->close();
  r.loop.run_for(1ms);
  for (const std::uint32_t i : {0u, 2u, 3u}) {
    REQUIRE(r.ranks[i].down.size() == 1);
    CHECK(r.ranks[i].down[0].first == 1);
  }
  CHECK(r.ranks[1].down.empty());
}

TEST_CASE("local links: who has another key, or none, does not get in") {
  const bool has_one = GENERATE(true, false);
  const ExpectLog refused("is refused");
  Ranks r(2, {Key::fresh().value(), has_one ? Key::fresh().value() : nullptr});
  r.open(0);
  r.open(1);
  r.loop.run_for(11s);
  for (auto& rank : r.ranks) {
    CHECK(rank.up == 0);
    REQUIRE(rank.failure);
    CHECK(rank.failure->code == ErrorCode::unreachable);
  }
  CHECK(r.ranks[0].failure->message ==
        "there is no link to rank 4 of this host (gpu-03): it has not connected to this worker");
  CHECK(r.ranks[1].failure->message ==
        (has_one
             ? "there is no link to rank 3 of this host (gpu-03): the key is not the right one"
             : "there is no link to rank 3 of this host (gpu-03): this worker lets nobody in without a key"));
}

TEST_CASE("local links: whoever is no rank of this run is refused") {
  const ExpectLog refused("is refused: this is no place for Heartbeat");
  Ranks r(2);
  r.open(0);
  struct Stranger final : ConnectionHandler {
    std::byte* on_payload(const Message&, std::uint64_t) override { return nullptr; }
    void on_message(Message& message, std::span<std::byte>) override {
      if (const auto* refused = std::get_if<Refused>(&message)) why = refused->message;
    }
    void on_closed(const Error&) override { closed = true; }
    std::string why;
    bool closed = false;
  };
  const auto say = [&](const Message& message) {
    Stranger stranger;
    const auto connection = r.transport.connect(r.loop, local_endpoint(JobRun{0xfe}, Rank{3}, 0), 1s);
    connection->start(stranger);
    connection->send(message);
    r.loop.run_for(10ms);
    CHECK(stranger.closed);
    return stranger.why;
  };
  CHECK(say(Heartbeat{}) == "this is no place for Heartbeat");
  CHECK(say(HelloLocal{JobRun{1}, Rank{4}, Incarnation{21}, Incarnation{20}, {}}) ==
        "this is no place for a rank of another run");
  CHECK(say(HelloLocal{JobRun{0xfe}, Rank{4}, Incarnation{21}, Incarnation{7}, {}}) ==
        "this is no place for a rank of another run");
  CHECK(say(HelloLocal{JobRun{0xfe}, Rank{5}, Incarnation{22}, Incarnation{20}, {}}) ==
        "this is no place for a rank that is not a higher one of this host");
  r.open(1);
  r.loop.run_for(100ms);
  CHECK(r.ranks[0].up == 1);
}

TEST_CASE("local links: connections that say nothing keep no rank out") {
  struct Silent final : ConnectionHandler {
    std::byte* on_payload(const Message&, std::uint64_t) override { return nullptr; }
    void on_message(Message&, std::span<std::byte>) override {}
    void on_closed(const Error&) override { closed = true; }
    bool closed = false;
  };
  Ranks r(2);
  r.open(0);
  std::deque<Silent> silent(LocalLinks::kMaxGuests);
  std::vector<std::unique_ptr<Connection>> connections;
  for (Silent& one : silent) {
    connections.push_back(r.transport.connect(r.loop, local_endpoint(JobRun{0xfe}, Rank{3}, 0), 1s));
    connections.back()->start(one);
  }
  r.loop.run_for(1ms);
  CHECK_FALSE(silent.front().closed);
  r.open(1);
  r.loop.run_for(10ms);
  for (auto& rank : r.ranks)
    CHECK(rank.up == 1);
}

TEST_CASE("local links: one that says nothing is dropped, and a broken rule closes the link") {
  const ExpectLog refused("is refused: rank 4 sent nonsense");
  Ranks r(2);
  r.open(0);
  r.open(1);
  r.loop.run_for(100ms);
  REQUIRE(r.ranks[0].up == 1);
  r.ranks[0].answer = make_error(ErrorCode::protocol, "rank 4 sent nonsense");
  r.ranks[1].links->send(0, Heartbeat{}, {}, 0);
  r.loop.run_for(100ms);
  REQUIRE(r.ranks[0].down.size() == 1);
  CHECK(r.ranks[0].down[0].second == "rank 4 sent nonsense");
  REQUIRE(r.ranks[1].down.size() == 1);
  CHECK(r.ranks[1].down[0].second == "rank 4 sent nonsense");
}

}  // namespace
}  // namespace bps::testing

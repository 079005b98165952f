#include "tests/sim/virtual_transport.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "proto/base/loop/virtual_loop.h"

namespace bps::sim {
namespace {

using namespace std::chrono_literals;

// Records what happens; payloads go into memory of exactly their size.
struct Recorder : ConnectionHandler {
  std::byte* on_payload(const Message&, std::uint64_t bytes) override {
    landing = std::vector<std::byte>(bytes);
    return drop_payloads ? nullptr : landing.data();
  }
  void on_message(Message& message, std::span<std::byte> payload) override {
    names.emplace_back(name_of(message));
    if (const auto* const beat = std::get_if<Heartbeat>(&message)) beats.push_back(beat->sequence);
    payloads.emplace_back(payload.begin(), payload.end());
    if (on_any) on_any();
  }
  bool on_lent(Message& message, LentPayload& payload) override {
    if (!borrow) return false;
    names.emplace_back(name_of(message));
    if (payload.intact()) lent.push_back(std::move(payload));
    return true;
  }
  void on_sent(std::uint64_t cookie) override { sent.push_back(cookie); }
  void on_writable() override { ++writable; }
  void on_closed(const Error& error) override {
    ++closed;
    end = error;
  }

  bool drop_payloads = false;
  bool borrow = false;
  std::vector<LentPayload> lent;
  std::vector<std::byte> landing;
  std::vector<std::string> names;
  std::vector<std::uint64_t> beats;
  std::vector<std::vector<std::byte>> payloads;
  std::vector<std::uint64_t> sent;
  int writable = 0;
  int closed = 0;
  Error end;
  std::function<void()> on_any;
};

std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> data(bytes);
  for (std::byte& b : data)
    b = static_cast<std::byte>(random.next());
  return data;
}

Message push(std::uint64_t round) {
  PushPull message;
  message.job_run = JobRun{7};
  message.round = Round{round};
  message.weight = 1;
  return message;
}

struct Pair {
  explicit Pair(std::uint64_t seed, NetworkOptions options = {}) : network(loop, seeded(options, seed)) {
    auto listening =
        network.listen(b.loop(), Endpoint{"10.0.0.2", 4710}, [this](std::unique_ptr<Connection> c) {
          right = std::move(c);
          right->end_handshake(kMaxControlHeaderBytes);
          right->start(at_right);
        });
    REQUIRE(listening.ok());
    listener = std::move(listening).value();
    left = network.connect(a.loop(), listener->endpoint(), 1s);
    left->start(at_left);
  }
  static NetworkOptions seeded(NetworkOptions options, std::uint64_t seed) {
    options.seed = seed;
    return options;
  }
  bool run(const std::function<bool()>& done) { return loop.run_until(done, loop.now() + 60s); }

  VirtualLoop loop;
  SimNode a{loop, "a", "10.0.0.1", 1};
  SimNode b{loop, "b", "10.0.0.2", 2};
  VirtualTransport network;
  Recorder at_left, at_right;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Connection> left, right;
};

}  // namespace

TEST_CASE("frames arrive whole, once and in order, whatever the seed") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Pair pair(seed);
    std::vector<std::vector<std::byte>> data;
    for (std::uint64_t i = 0; i < 20; ++i)
      data.push_back(pattern(i * 1'777, seed + i));
    for (std::uint64_t i = 0; i < 20; ++i)
      pair.left->send(push(i), data[i], i + 1);
    REQUIRE(pair.run([&] { return pair.at_right.payloads.size() == 20 && pair.at_left.sent.size() == 20; }));
    CHECK(pair.at_right.payloads == data);
    std::sort(pair.at_left.sent.begin(), pair.at_left.sent.end());
    for (std::uint64_t i = 0; i < 20; ++i)
      CHECK(pair.at_left.sent[i] == i + 1);
    CHECK(pair.network.violations().empty());
    CHECK(pair.left->queued_bytes() == 0);
    CHECK(pair.at_left.writable >= 1);
  }
}

TEST_CASE("the end that accepts may speak first, and fill its window") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Pair pair(seed, {.max_window = 4 * 1024});
    const auto data = pattern(10'000, seed);
    REQUIRE(pair.run([&] { return pair.right != nullptr; }));
    for (std::uint64_t i = 0; i < 3; ++i)
      pair.right->send(push(i), data, i + 1);
    REQUIRE(pair.run([&] { return pair.at_left.payloads.size() == 3 && pair.at_right.sent.size() == 3; }));
  }
}

TEST_CASE("the same seed gives the same run, another seed another") {
  const auto trace = [](std::uint64_t seed) {
    Pair pair(seed);
    std::vector<std::int64_t> times;
    pair.network.observe(
        [&](const FrameEvent& event) { times.push_back(event.when.time_since_epoch().count()); });
    const auto data = pattern(50'000, seed);
    for (std::uint64_t i = 0; i < 5; ++i)
      pair.left->send(push(i), data, 1);
    REQUIRE(pair.run([&] { return times.size() == 5; }));
    return times;
  };
  CHECK(trace(3) == trace(3));
  CHECK(trace(3) != trace(4));
}

TEST_CASE("a payload that changes before on_sent is reported") {
  std::size_t caught = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    NetworkOptions options;
    options.lending_percent = seed % 2 * 100;
    Pair pair(seed, options);
    auto data = pattern(200'000, seed);
    pair.left->send(push(0), data, 1);
    REQUIRE(pair.run([&] { return pair.left->queued_bytes() < 200'000; }));
    data.front() ^= std::byte{1};
    pair.run([&] { return !pair.at_left.sent.empty(); });
    caught += pair.network.violations().size();
  }
  CHECK(caught >= 20);
}

TEST_CASE("the receiver may drop a payload, and the frames after it still come") {
  Pair pair(5);
  pair.at_right.drop_payloads = true;
  const auto data = pattern(30'000, 1);
  pair.left->send(push(0), data, 1);
  pair.left->send(Heartbeat{42});
  REQUIRE(pair.run([&] { return pair.at_right.names.size() == 2; }));
  CHECK(pair.at_right.payloads[0].empty());
  CHECK(pair.at_right.beats == std::vector<std::uint64_t>{42});
}

TEST_CASE("close: the owner hears nothing more, the peer once") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Pair pair(seed);
    REQUIRE(pair.run([&] { return pair.right != nullptr && pair.at_left.writable > 0; }));
    pair.left->send(Heartbeat{1});
    pair.left->close();
    pair.left->close();
    REQUIRE(pair.run([&] { return pair.at_right.closed == 1; }));
    CHECK(pair.at_right.end.code == ErrorCode::peer_lost);
    pair.loop.run_for(10s);
    CHECK(pair.at_right.closed == 1);
    CHECK(pair.at_left.closed == 0);
    pair.right.reset();
    CHECK(pair.network.open_sides() == 0);
  }
}

TEST_CASE("close_after_flush: the last frame arrives although the owner is gone") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Pair pair(seed);
    pair.left->send(Heartbeat{1});
    pair.left->send(Refused{ErrorCode::configuration, "no", "try again"});
    pair.left->close_after_flush(5s);
    pair.left.reset();
    REQUIRE(pair.run([&] { return pair.at_right.closed == 1; }));
    CHECK(pair.at_right.names == std::vector<std::string>{"Heartbeat", "Refused"});
    CHECK(pair.at_left.closed == 0);
  }
}

TEST_CASE("a connection moves to another loop without losing a byte") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Pair pair(seed);
    NodeLoop& shard = pair.b.add_loop();
    Recorder later;
    std::unique_ptr<Connection> moved;
    pair.at_right.on_any = [&] {
      moved = pair.right->move_to(shard);
      pair.b.loop(1).post([&] { moved->start(later); });
    };
    for (std::uint64_t i = 0; i < 10; ++i)
      pair.left->send(Heartbeat{i});
    REQUIRE(pair.run([&] { return later.beats.size() == 9; }));
    CHECK(pair.at_right.beats == std::vector<std::uint64_t>{0});
    CHECK(later.beats.back() == 9);
  }
}

TEST_CASE("failures to connect are told by on_closed") {
  Pair pair(9);
  Recorder recorder;
  SECTION("nobody listens") {
    auto none = pair.network.connect(pair.a.loop(), Endpoint{"10.0.0.2", 1}, 1s);
    none->start(recorder);
    REQUIRE(pair.run([&] { return recorder.closed == 1; }));
  }
  SECTION("refused") {
    pair.network.refuse_connects([](const Endpoint&) { return true; });
    auto none = pair.network.connect(pair.a.loop(), pair.listener->endpoint(), 1s);
    none->start(recorder);
    REQUIRE(pair.run([&] { return recorder.closed == 1; }));
  }
  SECTION("the host is gone") {
    pair.b.kill();
    pair.network.forget(pair.b, VirtualTransport::Death::silent);
    const TimePoint before = pair.loop.now();
    auto none = pair.network.connect(pair.a.loop(), pair.listener->endpoint(), 1s);
    none->start(recorder);
    REQUIRE(pair.run([&] { return recorder.closed == 1; }));
    CHECK(pair.loop.now() >= before + 1s);
  }
  CHECK(recorder.end.code == ErrorCode::unreachable);
  CHECK(recorder.writable == 0);
}

TEST_CASE("a port is given once") {
  Pair pair(9);
  const auto second =
      pair.network.listen(pair.b.loop(), pair.listener->endpoint(), [](std::unique_ptr<Connection>) {});
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().code == ErrorCode::os);
  const auto free =
      pair.network.listen(pair.b.loop(), Endpoint{"10.0.0.2", 0}, [](std::unique_ptr<Connection>) {});
  REQUIRE(free.ok());
  CHECK(free.value()->endpoint().port != 0);
}

TEST_CASE("a cut: both sides hear it, a half-received payload never becomes a message") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    NetworkOptions slow;
    slow.lending_percent = 0;
    slow.max_bytes_per_second = 10'000'000;
    Pair pair(seed, slow);
    const auto data = pattern(4'000'000, seed);
    pair.left->send(push(0), data, 1);
    REQUIRE(pair.run([&] { return !pair.at_right.landing.empty(); }));
    CHECK(pair.network.cut([](const Side&) { return true; }, 10ms) == 1);
    REQUIRE(pair.run([&] { return pair.at_left.closed == 1 && pair.at_right.closed == 1; }));
    CHECK(pair.at_right.names.empty());
    pair.loop.run_for(10s);
    CHECK(pair.at_left.closed + pair.at_right.closed == 2);
  }
}

TEST_CASE("a paused process takes bytes into its kernel, up to the window, and goes on where it was") {
  NetworkOptions options;
  options.max_window = 64 * 1024;
  options.lending_percent = 0;
  Pair pair(3, options);
  REQUIRE(pair.run([&] { return pair.right != nullptr && pair.at_left.writable == 1; }));
  pair.b.pause();
  const auto data = pattern(1'000'000, 3);
  pair.left->send(push(0), data, 1);
  pair.loop.run_for(5s);
  CHECK(pair.left->queued_bytes() >= 1'000'000 - 64 * 1024);
  CHECK(pair.left->queued_bytes() < 1'000'100);
  CHECK(pair.at_left.writable == 1);
  pair.b.resume();
  REQUIRE(pair.run([&] { return pair.at_right.payloads.size() == 1; }));
  CHECK(pair.at_right.payloads[0] == data);
  CHECK(pair.at_left.writable >= 2);
}

TEST_CASE("a delay spike holds bytes back; what follows does not overtake them") {
  Pair pair(4);
  REQUIRE(pair.run([&] { return pair.right != nullptr && pair.at_left.writable == 1; }));
  pair.network.delay([](const Side& side) { return side.connector; }, 2s, pair.loop.now() + 10ms);
  pair.left->send(Heartbeat{1});
  pair.loop.run_for(20ms);
  pair.left->send(Heartbeat{2});
  pair.loop.run_for(1s);
  CHECK(pair.at_right.beats.empty());
  REQUIRE(pair.run([&] { return pair.at_right.beats.size() == 2; }));
  CHECK(pair.at_right.beats == std::vector<std::uint64_t>{1, 2});
}

TEST_CASE("a process that is killed: loudly its peers hear it, silently they do not") {
  const bool loud = GENERATE(true, false);
  Pair pair(11);
  REQUIRE(pair.run([&] { return pair.right != nullptr && pair.at_left.writable == 1; }));
  pair.b.kill();
  pair.network.forget(pair.b, loud ? VirtualTransport::Death::loud : VirtualTransport::Death::silent);
  pair.right.reset();
  pair.loop.run_for(20s);
  CHECK(pair.at_left.closed == (loud ? 1 : 0));
}

TEST_CASE("a handler may destroy its connection inside any callback") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Pair pair(seed);
    const auto data = pattern(10'000, seed);
    pair.at_right.on_any = [&] { pair.right.reset(); };
    for (int i = 0; i < 3; ++i)
      pair.left->send(push(0), data, 1);
    REQUIRE(pair.run([&] { return pair.at_left.closed == 1; }));
    CHECK(pair.at_right.names.size() == 1);
    CHECK(pair.at_right.closed == 0);
  }
}

TEST_CASE("a header above the limit costs the connection") {
  Pair pair(2);
  Refused large{ErrorCode::protocol, std::string(4000, 'x'), ""};
  REQUIRE(pair.run([&] { return pair.right != nullptr; }));
  pair.right->end_handshake(1000);
  pair.left->send(large);
  REQUIRE(pair.run([&] { return pair.at_right.closed == 1 && pair.at_left.closed == 1; }));
  CHECK(pair.at_right.end.code == ErrorCode::protocol);
  CHECK(pair.at_right.names.empty());
}

TEST_CASE("tampering does what it says") {
  Pair pair(6);
  const auto data = pattern(3'000, 6);
  const Tamper kind = GENERATE(Tamper::drop, Tamper::duplicate, Tamper::flip_payload_bit);
  pair.network.tamper([kind](const Message& message, const Side&) {
    return std::holds_alternative<PushPull>(message) ? kind : Tamper::none;
  });
  pair.left->send(push(0), data, 1);
  pair.left->send(Heartbeat{1});
  REQUIRE(pair.run([&] { return !pair.at_right.beats.empty(); }));
  CHECK(pair.at_right.names.size() == (kind == Tamper::drop ? 1 : kind == Tamper::duplicate ? 3 : 2));
  if (kind == Tamper::flip_payload_bit) CHECK(pair.at_right.payloads[0] != data);
}

// ---- lending ----

namespace {

NetworkOptions all_lend() {
  NetworkOptions options;
  options.lending_percent = 100;
  return options;
}

}  // namespace

TEST_CASE("some connections lend and others do not; what a handler does not take is copied") {
  std::size_t lending = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Pair pair(seed);
    const auto data = pattern(30'000, seed);
    pair.left->send(push(0), data, 1);
    REQUIRE(pair.run([&] { return pair.at_right.payloads.size() == 1 && pair.at_left.sent.size() == 1; }));
    CHECK(pair.at_right.payloads[0] == data);
    const LendingCounts counts = pair.network.lending();
    lending += counts.offered;
    CHECK(counts.taken == 0);
    CHECK(counts.out == 0);
  }
  CHECK(lending > 10);
  CHECK(lending < 30);
}

TEST_CASE("a lent payload that is kept shows, and holds up what is scarce") {
  bool scarce = false, own = false;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Pair pair(seed, all_lend());
    pair.at_right.borrow = true;
    const auto data = pattern(100'000, seed);
    for (std::uint64_t i = 0; i < 8; ++i)
      pair.left->send(push(i), data, i + 1);
    pair.loop.run_for(10s);
    for (const LentPayload& payload : pair.at_right.lent)
      (payload.scarce() ? scarce : own) = true;
    CHECK(pair.network.lending().out == pair.at_right.lent.size());
    const bool waits = pair.left->queued_bytes() > 0;
    CHECK(waits == (pair.at_right.lent.size() < 8));
    REQUIRE(pair.run([&] {
      pair.at_right.lent.clear();
      return pair.at_left.sent.size() == 8 && pair.network.lending().taken == 8;
    }));
    pair.at_right.lent.clear();
    CHECK(pair.network.lending().out == 0);
    CHECK(pair.network.violations().empty());
  }
  CHECK(scarce);
  CHECK(own);
}

TEST_CASE("who writes into what it has borrowed is reported, and so is a sender that changes it") {
  const bool borrower = GENERATE(true, false);
  Pair pair(3, all_lend());
  pair.at_right.borrow = true;
  auto made = pair.network.allocate(100'000);
  REQUIRE(made.ok());
  const std::span<std::byte> own = (*made)->bytes().first(100'000);
  pair.left->send(push(0), {own, made->get()}, 1);
  REQUIRE(pair.run([&] { return pair.at_right.lent.size() == 1; }));
  if (borrower) {
    const_cast<std::byte&>(pair.at_right.lent[0].bytes()[5]) = std::byte{1};
  } else {
    own[5] = std::byte{1};
  }
  pair.at_right.lent.clear();
  REQUIRE(pair.run([&] { return !pair.at_left.sent.empty(); }));
  CHECK(pair.network.violations().size() == 1);
}

TEST_CASE("a payload given back on another loop is reported") {
  Pair pair(3, all_lend());
  pair.at_right.borrow = true;
  const auto data = pattern(100'000, 1);
  pair.left->send(push(0), data, 1);
  REQUIRE(pair.run([&] { return pair.at_right.lent.size() == 1; }));
  pair.a.loop().post([&] { pair.at_right.lent.clear(); });
  REQUIRE(pair.run([&] { return !pair.at_left.sent.empty(); }));
  CHECK(pair.network.violations().size() == 1);
}

TEST_CASE("a cut withdraws what was lent: rubbish at once; a death leaves it as it was") {
  const bool death = GENERATE(true, false);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Pair pair(seed, all_lend());
    pair.at_right.borrow = true;
    const auto data = pattern(100'000, seed);
    pair.left->send(push(0), data, 1);
    REQUIRE(pair.run([&] { return pair.at_right.lent.size() == 1; }));
    if (death) {
      pair.a.kill();
      pair.network.forget(pair.a, VirtualTransport::Death::loud);
      REQUIRE(pair.run([&] { return pair.at_right.closed == 1; }));
      pair.left.reset();
    } else {
      pair.network.cut([](const Side&) { return true; }, 10ms);
      REQUIRE(pair.run([&] { return pair.at_left.closed == 1; }));
    }
    CHECK(pair.at_right.lent[0].intact() == death);
    CHECK(std::ranges::equal(pair.at_right.lent[0].bytes(), data) == death);
    pair.at_right.lent.clear();
    pair.loop.run_for(1s);
    CHECK(pair.network.lending().withdrawn == (death ? 0 : 1));
    CHECK(pair.network.violations().empty());
  }
}

TEST_CASE("a payload may be withdrawn before it is offered, or while it is copied") {
  std::size_t offered_late = 0, copied = 0, refused = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Pair pair(seed, all_lend());
    pair.at_right.borrow = seed % 2 == 0;
    const auto data = pattern(3'000, seed);
    REQUIRE(pair.run([&] { return pair.right != nullptr && pair.at_left.writable == 1; }));
    pair.left->send(push(0), data, 1);
    pair.left->send(push(1), data, 2);
    REQUIRE(pair.run([&] { return pair.left->queued_bytes() == 0 || !pair.at_right.lent.empty(); }));
    pair.left->close();
    REQUIRE(pair.run([&] { return pair.at_right.closed == 1; }));
    for (const std::vector<std::byte>& payload : pair.at_right.payloads)
      CHECK(payload == data);
    offered_late += pair.at_right.names.size() - pair.at_right.lent.size() - pair.at_right.payloads.size();
    copied += pair.at_right.end.message.find("being copied") != std::string::npos ? 1 : 0;
    refused += pair.at_right.end.message.find("has withdrawn") != std::string::npos ? 1 : 0;
  }
  CHECK(offered_late > 0);
  CHECK(copied > 0);
  CHECK(refused > 0);
}

TEST_CASE("senders can be told late that they have a payload back") {
  NetworkOptions options = all_lend();
  options.max_give_back = 10s;
  Duration longest{0};
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    Pair pair(seed, options);
    auto made = pair.network.allocate(50'000);
    REQUIRE(made.ok());
    pair.left->send(push(0), {(*made)->bytes(), made->get()}, 1);
    REQUIRE(pair.run([&] { return pair.at_right.payloads.size() == 1; }));
    const TimePoint arrived = pair.loop.now();
    REQUIRE(pair.run([&] { return pair.at_left.sent.size() == 1; }));
    longest = std::max(longest, pair.loop.now() - arrived);
  }
  CHECK(longest > 2s);
}

}  // namespace bps::sim

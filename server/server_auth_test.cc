// A server with a key, on real sockets: which lanes it opens, and whom it believes to be the scheduler.
#include "proto/auth/auth_harness.h"
#include "server/testing/server_harness.h"

namespace bps::server_test {
namespace {

using bps::testing::key_of;
using Catch::Contains;

const SharedKey kCluster = key_of(32, 0x11);

// A server with a key, of one shard, that has said its hello.
class KeyedWorld : public World {
 public:
  explicit KeyedWorld(SharedKey key = kCluster) : World(1) {
    options.key = std::move(key);
    options.shared_memory = &shared_memory;
    start_and_hear_hello();
  }

  // What a scheduler with `key` does with the server's hello; returns its Welcome.
  Welcome accept(const SharedKey& key) {
    AcceptingHandshake handshake(key, "scheduler");
    auto step = handshake.take(*scheduler->find<HelloServer>());
    REQUIRE(step.ok());
    scheduler->connection().send(step->message);
    until([&] { return scheduler->find<Proof>() != nullptr; });
    step = handshake.take(*scheduler->find<Proof>());
    REQUIRE(step.ok());
    CHECK(step->admitted);
    Welcome welcome = World::welcome();
    handshake.seal(welcome);
    return welcome;
  }

  // The server serves one job of two workers.
  void serve() {
    World::serve(accept(kCluster));
    REQUIRE(open_job(kRun, 2).code == ErrorCode::ok);
  }

  HelloLane hello(std::uint32_t rank = 0) {
    HelloLane hello = World::hello(kRun, rank, 0);
    hello.session = Session{++session};
    return hello;
  }

  // Opens a lane with this ticket; returns the Welcome or the Refused.
  Message open(const SharedKey& ticket, Message hello, bool local = false) {
    Peer& peer = connect(local);
    ConnectingHandshake handshake;
    REQUIRE(handshake.begin(ticket, hello).ok());
    peer.connection().send(hello);
    until([&] { return !peer.messages.empty(); });
    if (const auto* challenge = peer.find<Challenge>()) {
      const auto proof = handshake.answer(*challenge);
      REQUIRE(proof.ok());
      peer.connection().send(*proof);
      until([&] { return peer.find<Welcome>() != nullptr || peer.closed; });
    }
    if (const auto* welcome = peer.find<Welcome>()) {
      CHECK(handshake.check(*welcome, "the server").ok());
      return *welcome;
    }
    until([&] { return peer.closed.has_value(); });
    REQUIRE(peer.find<Refused>() != nullptr);
    return *peer.find<Refused>();
  }
  std::string refusal(const SharedKey& ticket, const HelloLane& hello) {
    const Message answer = open(ticket, hello);
    REQUIRE(std::holds_alternative<Refused>(answer));
    CHECK(std::get<Refused>(answer).code == ErrorCode::unauthorised);
    return std::get<Refused>(answer).message;
  }

  std::uint64_t session = 0;
};

SharedKey ticket_of(std::uint32_t rank, JobRun run = kRun, const SharedKey& cluster = kCluster) {
  return derive_ticket_key(*cluster, {run, Rank{rank}, Incarnation{100 + rank}});
}

}  // namespace

TEST_CASE("a server with a key opens lanes for tickets, over either transport") {
  KeyedWorld world;
  world.serve();
  CHECK(std::holds_alternative<Welcome>(world.open(ticket_of(0), world.hello(0))));
  CHECK(std::holds_alternative<Welcome>(world.open(ticket_of(1), world.hello(1))));
  if (ShmTransport::check())
    CHECK(std::holds_alternative<Welcome>(world.open(ticket_of(0), world.hello(0), true)));
  CHECK(world.server->rejected_connections() == 0);
}

TEST_CASE("a server with a key refuses forged and stolen tickets, and the job does not notice") {
  const ExpectLog expected("opened no lane");
  KeyedWorld world;
  world.serve();
  CHECK(std::holds_alternative<Welcome>(world.open(ticket_of(0), world.hello(0))));
  Peer& lane = *world.workers.back();
  const std::string wrong = "the ticket is not good for this lane";
  CHECK(world.refusal(ticket_of(1), world.hello(0)) == wrong);              // another rank's
  CHECK(world.refusal(ticket_of(0, JobRun{43}), world.hello(0)) == wrong);  // another job's
  CHECK(world.refusal(ticket_of(0, kRun, key_of(32, 0x12)), world.hello(0)) == wrong);
  CHECK(world.refusal(derive_job_key(*kCluster, "job"), world.hello(0)) == wrong);
  CHECK(world.refusal(derive_server_key(*kCluster), world.hello(0)) == wrong);
  HelloLane reborn = world.hello(0);
  reborn.incarnation = Incarnation{999};
  CHECK(world.refusal(ticket_of(0), reborn) == wrong);
  // Nothing is said of what there is before the proof.
  HelloLane unknown = world.hello(0);
  unknown.job_run = JobRun{4711};
  unknown.server = ServerId{9};
  CHECK(world.refusal(ticket_of(0), unknown) == wrong);
  CHECK_THAT(world.refusal(nullptr, world.hello(0)), Contains("lets nobody in without a key"));
  CHECK(world.server->rejected_connections() == 8);
  CHECK_FALSE(lane.closed);
  // Only then what a right ticket is good for.
  HelloLane elsewhere = world.hello(0);
  elsewhere.server = ServerId{9};
  CHECK(std::get<Refused>(world.open(ticket_of(0), elsewhere)).code != ErrorCode::unauthorised);
}

TEST_CASE("a server with a key does not take a recorded handshake") {
  const ExpectLog expected("opened no lane");
  KeyedWorld world;
  world.serve();
  ConnectingHandshake handshake;
  Message hello = world.hello(0);
  REQUIRE(handshake.begin(ticket_of(0), hello).ok());
  Peer& first = world.connect();
  first.connection().send(hello);
  world.until([&] { return first.find<Challenge>() != nullptr; });
  const auto proof = handshake.answer(*first.find<Challenge>());
  first.connection().send(*proof);
  world.until([&] { return first.find<Welcome>() != nullptr; });
  // All at once, as a recording is: it says the same and cannot wait for what is new.
  Peer& replay = world.connect();
  replay.connection().send(hello);
  replay.connection().send(*proof);
  world.until([&] { return replay.closed.has_value(); });
  REQUIRE(replay.find<Refused>() != nullptr);
  CHECK(replay.find<Refused>()->code == ErrorCode::unauthorised);
  CHECK(replay.find<Welcome>() == nullptr);
  CHECK_FALSE(first.closed);
}

TEST_CASE("a server with a key hears nothing before the proof") {
  const ExpectLog expected("opened no lane");
  KeyedWorld world;
  world.serve();
  HelloLane hello = world.hello(0);
  hello.nonce = Nonce{};
  for (const Message& second : {Message(hello), Message(PushPull{}), Message(Heartbeat{})}) {
    Peer& peer = world.connect();
    peer.connection().send(hello);
    peer.connection().send(second);
    world.until([&] { return peer.closed.has_value(); });
    REQUIRE(peer.find<Refused>() != nullptr);
    CHECK(peer.find<Refused>()->code == ErrorCode::protocol);
  }
}

TEST_CASE("a server believes no scheduler that does not prove the key") {
  KeyedWorld world;
  SECTION("one without a key, or one that hopes for a server without") {
    world.scheduler->connection().send(world.welcome());
  }
  SECTION("one that asks for a proof and cannot check it") {
    world.scheduler->connection().send(Challenge{});
    world.until([&] { return world.scheduler->find<Proof>() != nullptr; });
    Welcome welcome = world.welcome();
    welcome.mac = Mac{};
    world.scheduler->connection().send(welcome);
  }
  SECTION("one that sends the proof back") {
    world.scheduler->connection().send(Challenge{*world.scheduler->find<HelloServer>()->nonce});
    world.until([&] { return world.scheduler->find<Proof>() != nullptr; });
    Welcome welcome = world.welcome();
    welcome.mac = world.scheduler->find<Proof>()->mac;
    world.scheduler->connection().send(welcome);
  }
  SECTION("a Welcome that was changed on its way") {
    Welcome welcome = world.accept(kCluster);
    welcome.server = ServerId{6};
    world.scheduler->connection().send(welcome);
  }
  world.until([&] { return world.stopped.has_value(); });
  CHECK(world.stopped->code == ErrorCode::unauthorised);
  CHECK_THAT(world.stopped->message, Contains("does not prove that it has the key"));
  CHECK_FALSE(world.registered);
}

TEST_CASE("a server without a key is asked for one, and refuses lanes of workers that have one") {
  const ExpectLog expected("opened no lane");
  KeyedWorld world(nullptr);
  SECTION("by its scheduler") {
    world.scheduler->connection().send(Challenge{});
    world.until([&] { return world.stopped.has_value(); });
    CHECK(world.stopped->code == ErrorCode::unauthorised);
  }
  SECTION("by a worker") {
    world.scheduler->connection().send(world.welcome());
    world.until([&] { return world.registered; });
    CHECK_THAT(world.refusal(ticket_of(0), world.hello(0)), Contains("this server has no key"));
  }
}

}  // namespace bps::server_test

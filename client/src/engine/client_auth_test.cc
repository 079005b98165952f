// A worker with a key: whom it believes, and what it says when it is refused.
#include <catch2/catch.hpp>

#include "client/src/engine/testing/scripted_cluster.h"
#include "proto/auth/auth_harness.h"
#include "proto/auth/handshake.h"
#include "proto/base/log/log.h"

namespace bps::testing::client_auth_test {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;

const SharedKey kCluster = key_of(32, 0x11);

ClientConfig keyed_config(const SharedKey& key = derive_job_key(*kCluster, "job")) {
  ClientConfig config = ScriptedCluster::default_config();
  config.key = key;
  return config;
}

struct Joining : ScriptedCluster {
  explicit Joining(ClientConfig config = keyed_config()) : ScriptedCluster(std::move(config)) {
    engine.join([this](Status status) {
      ++ended;
      if (!status.ok()) error = status.error();
    });
    scheduler().handler->on_writable();
  }

  // What a daemon with `key` does with the hello on this wire, up to the sealed Welcome.
  template <class Hello>
  Welcome accept(Wire& wire, const SharedKey& key, Welcome welcome) {
    AcceptingHandshake handshake(key, "daemon");
    auto step = handshake.take(wire.next<Hello>());
    REQUIRE(step.ok());
    REQUIRE_FALSE(step->admitted);
    wire.deliver(step->message);
    step = handshake.take(wire.next<Proof>());
    REQUIRE(step.ok());
    handshake.seal(welcome);
    return welcome;
  }
  Welcome plain() const { return Welcome{Term{1, 2}, Incarnation{10}, ServerId{}, JobRun{kRun}}; }
  Welcome plain_lane(std::uint32_t index) const {
    return Welcome{Term{1, 2}, Incarnation{10}, ServerId{index + 1}, JobRun{kRun}};
  }
  void start_job(std::uint32_t lanes) {
    scheduler().deliver(accept<HelloWorker>(scheduler(), kCluster, plain()));
    scheduler().deliver(job_start(lanes));
    REQUIRE(ended == 1);
    REQUIRE(error.code == ErrorCode::ok);
  }
  int ended = 0;
  Error error;
};

}  // namespace

TEST_CASE("keys: a worker proves its job's key to the scheduler and its ticket to the servers") {
  Joining c;
  c.start_job(2);
  for (std::uint32_t i = 0; i < 2; ++i)
    c.lane(i).deliver(c.accept<HelloLane>(c.lane(i), kCluster, c.plain_lane(i)));
  CHECK(c.engine.stats()->lanes == 2);
  // Again after a break, with another nonce.
  c.lane(0).break_with(ErrorCode::unreachable, "connection reset");
  c.loop.run_for(100ms);
  c.lane(0).deliver(c.accept<HelloLane>(c.lane(0), kCluster, c.plain_lane(0)));
  CHECK(c.engine.stats()->lanes == 2);
}

TEST_CASE("keys: a connection that is taken up again is proven anew, and brings no ticket") {
  const ExpectLog lost("scheduler 127.0.0.1:4710 is lost");
  const ExpectLog back("scheduler 127.0.0.1:4710 is there again");
  Joining c;
  c.start_job(1);
  c.scheduler().break_with(ErrorCode::unreachable, "connection reset");
  c.loop.run_for(100ms);
  SECTION("by who has the key") {
    c.scheduler().deliver(c.accept<HelloWorker>(c.scheduler(), kCluster, c.plain()));
    (void)c.scheduler().next<JobStart>();
    (void)c.scheduler().next<Attached>();
    c.lane(0).deliver(c.accept<HelloLane>(c.lane(0), kCluster, c.plain_lane(0)));
    CHECK(c.engine.stats()->lanes == 1);
  }
  SECTION("not by somebody else") {
    c.scheduler().deliver(c.plain());
    REQUIRE(c.engine.failure());
    CHECK(c.engine.failure()->code == ErrorCode::unauthorised);
  }
}

TEST_CASE("keys: a worker that has one believes no scheduler that does not") {
  Joining c;
  SECTION("a Welcome at once") { c.scheduler().deliver(c.plain()); }
  SECTION("a challenge, and a Welcome without proof") {
    c.scheduler().deliver(Challenge{});
    c.scheduler().deliver(c.plain());
  }
  SECTION("its own proof sent back") {
    const auto hello = c.scheduler().next<HelloWorker>();
    c.scheduler().deliver(Challenge{*hello.nonce});
    Welcome welcome = c.plain();
    welcome.mac = c.scheduler().next<Proof>().mac;
    c.scheduler().deliver(welcome);
  }
  SECTION("a Welcome that was changed on its way") {
    Welcome welcome = c.accept<HelloWorker>(c.scheduler(), kCluster, c.plain());
    welcome.incarnation = Incarnation{11};
    c.scheduler().deliver(welcome);
  }
  CHECK(c.ended == 1);
  CHECK(c.error.code == ErrorCode::unauthorised);
  CHECK(exit_code_of(c.error.code) == 77);
  CHECK_THAT(c.error.message, Contains("scheduler 127.0.0.1:4710 does not prove that it has the key"));
  CHECK_THAT(c.error.advice, Contains("--key-file"));
  c.loop.run_for(10s);
  CHECK(c.connects(4710) == 1);  // not tried again
}

TEST_CASE("keys: a worker without one is asked for it") {
  Joining c(ScriptedCluster::default_config());
  SECTION("in words") {
    AcceptingHandshake handshake(kCluster, "scheduler");
    const auto step = handshake.take(c.scheduler().next<HelloWorker>());
    REQUIRE_FALSE(step.ok());
    c.scheduler().deliver(Refused{step.error().code, step.error().message, step.error().advice});
    CHECK_FALSE(c.scheduler().open());
  }
  SECTION("by a challenge") { c.scheduler().deliver(Challenge{}); }
  CHECK(c.ended == 1);
  CHECK(c.error.code == ErrorCode::unauthorised);
  CHECK_THAT(c.error.advice, Contains("--key-file"));
}

TEST_CASE("keys: who listens on a server's port without the cluster's key gets nothing, and ends the job") {
  const ExpectLog expected("cannot be reached for 2 s: it does not prove that it has the key");
  Joining c;
  c.start_job(1);
  for (int i = 0; i < 100 && !c.engine.failure(); ++i) {
    if (c.lane(0).open()) c.lane(0).deliver(c.plain_lane(0));
    c.loop.run_for(100ms);
    if (c.scheduler().open()) c.scheduler().deliver(Heartbeat{});
  }
  REQUIRE(c.engine.failure());
  CHECK(c.engine.failure()->code == ErrorCode::unauthorised);
  CHECK_THAT(c.engine.failure()->message, Contains("does not prove that it has the key"));
  CHECK(c.engine.stats()->lanes == 0);
}

}  // namespace bps::testing::client_auth_test

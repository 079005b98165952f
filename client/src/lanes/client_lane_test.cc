#include "client/src/engine/testing/running_harness.h"
#include "proto/base/log/log.h"

namespace bps::testing {

using namespace std::chrono_literals;
using Catch::Contains;

TEST_CASE("lane: nothing is sent before the welcome") {
  ScriptedCluster c;
  c.engine.join([](Status) {});
  c.welcome_worker();
  c.scheduler().deliver(c.job_start(1));
  const TensorId tensor = c.declare("t", 8, {0});
  auto data = bytes_of(8, 1);
  Outcome outcome;
  REQUIRE(c.engine.begin(push_pull_of(tensor, data, data, Operation::sum, c.into(outcome))).ok());
  const auto hello = c.lane(0).next<HelloLane>();
  CHECK(c.lane(0).frames.empty());
  CHECK_THAT(c.engine.describe(tensor), Contains("has not welcomed this worker yet"));
  c.lane(0).deliver(Welcome{Term{1, 2}, Incarnation{10}, hello.server, JobRun{77}});
  CHECK(c.lane(0).frames.size() == 1);
}

TEST_CASE("lane: a broken one comes back with a higher session and what was not answered") {
  Running c;
  c.push_pull();
  c.take(0);
  c.take(1);
  c.take(0, false);
  c.lane(0).deliver(c.answer(0, 0, kSlice), bytes_of(kSlice, 9));
  c.lane(0).break_with(ErrorCode::unreachable, "connection reset");
  CHECK_THAT(c.engine.describe(c.tensor), Contains("1 of 3") && Contains("not connected: connection reset"));
  c.loop.run_for(Lane::kFirstPause);
  CHECK(c.welcome_lane(0).session == Session{2});
  CHECK(c.take(0).partition == PartitionId{2});
  CHECK(c.lane(0).frames.empty());
  CHECK(c.engine.stats()->resent == 1);
  // The count of taken bytes begins anew.
  CHECK(c.lane(0).deliver(c.answer(2, 0, 100), bytes_of(100, 7)));
  CHECK(c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8)));
  CHECK(c.outcome.ended == 1);
  CHECK(c.out == c.expected());
}

TEST_CASE("lane: it breaks while an answer arrives") {
  SECTION("retained: sent again, nothing of the output was touched") {
    Running c;
    c.push_pull_in_place();
    c.take(0), c.take(1), c.take(0);
    REQUIRE(c.lane(0).begin(c.answer(0, 0, kSlice), bytes_of(kSlice, 99)) != nullptr);
    c.lane(0).break_with(ErrorCode::unreachable, "connection reset");
    CHECK(c.in == bytes_of(2 * kSlice + 100, 1));
    c.loop.run_for(Lane::kFirstPause);
    c.welcome_lane(0);
    CHECK(c.take(0).partition == PartitionId{0});
    CHECK(c.payload == bytes_of(kSlice, 1));
    c.take(0);
    c.answer_all(0);
    CHECK(c.in == c.expected());
  }
  SECTION("not retained, in place: the contribution is gone, which is said") {
    Running c(with(false));
    c.push_pull_in_place();
    c.take(0), c.take(1), c.take(0);
    REQUIRE(c.lane(0).begin(c.answer(0, 0, kSlice), bytes_of(kSlice, 99)) != nullptr);
    c.lane(0).break_with(ErrorCode::unreachable, "connection reset");
    c.loop.run_for(Lane::kFirstPause);
    c.welcome_lane(0);
    CHECK(c.take(0).partition == PartitionId{2});
    c.lane(0).deliver(c.answer(2, 0, 100), bytes_of(100, 7));
    CHECK(c.outcome.ended == 0);
    c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8));
    CHECK(c.outcome.ended == 1);
    CHECK(c.outcome.error.code == ErrorCode::peer_lost);
    CHECK_THAT(c.outcome.error.message, Contains("cannot be sent again"));
    CHECK_FALSE(c.engine.failure());
  }
  SECTION("not retained, apart: sent again") {
    Running c(with(false));
    c.push_pull();
    c.take(0), c.take(1), c.take(0);
    REQUIRE(c.lane(0).begin(c.answer(0, 0, kSlice), bytes_of(kSlice, 99)) != nullptr);
    c.lane(0).break_with(ErrorCode::unreachable, "connection reset");
    c.loop.run_for(Lane::kFirstPause);
    c.welcome_lane(0);
    c.take(0), c.take(0);
    c.answer_all(0);
    CHECK(c.out == c.expected());
  }
}

TEST_CASE("lane: an answer that comes while the contribution waits to be sent again") {
  Running c(with(true, 0));  // one partition at a time
  c.push_pull();
  c.take(0);
  c.lane(0).break_with(ErrorCode::unreachable, "connection reset");
  c.take(1);  // its credit came free
  c.loop.run_for(Lane::kFirstPause);
  c.welcome_lane(0);
  CHECK(c.lane(0).frames.empty());
  CHECK(c.lane(0).deliver(c.answer(0, 0, 0), bytes_of(kSlice, 9)));
  c.lane(1).deliver(c.answer(1, 0, kSlice), bytes_of(kSlice, 8));
  CHECK(c.take(0).partition == PartitionId{2});
  CHECK(c.lane(0).frames.empty());
  c.lane(0).deliver(c.answer(2, 0, 100), bytes_of(100, 7));
  CHECK(c.out == c.expected());
}

TEST_CASE("lane: the server stays away, then refuses") {
  Running c;
  c.push_pull();
  c.lane(0).break_with(ErrorCode::unreachable, "connection reset");
  SECTION("away: tried for ever, ever more slowly, and said") {
    const ExpectLog away("cannot be reached for");
    for (int i = 0; i < 300; ++i) {
      c.loop.run_for(100ms);
      if (i % 10 == 0) c.scheduler().deliver(Heartbeat{});
      if (c.lane(0).open()) c.lane(0).break_with(ErrorCode::unreachable, "connection refused");
    }
    CHECK(c.connects(5000) > 25);
    CHECK(c.connects(5000) < 45);
    CHECK(away.seen() == 1);
    CHECK(c.outcome.ended == 0);
  }
  SECTION("refused for good: the job ends, but not at once") {
    const ExpectLog away("cannot be reached for");
    const TimePoint begin = c.loop.now();
    while (c.outcome.ended == 0 && c.loop.now() - begin < 20s) {
      c.loop.run_for(50ms);
      if (!c.lane(0).open()) continue;
      c.lane(0).deliver(Refused{ErrorCode::protocol, "version 2 is spoken here", ""});
      CHECK_FALSE(c.lane(0).open());  // whoever is refused closes
      if (c.scheduler().open()) c.scheduler().deliver(Heartbeat{});
    }
    CHECK(c.outcome.error.code == ErrorCode::protocol);
    CHECK_THAT(c.outcome.error.message, Contains("server 1 (127.0.0.1:5000) refuses this worker: version 2"));
    CHECK(c.loop.now() - begin >= Lane::kRefusalPatience);
  }
  SECTION("welcomed, then refused again and again for what is sent") {
    const TimePoint begin = c.loop.now();
    while (c.outcome.ended == 0 && c.loop.now() - begin < 20s) {
      c.loop.run_for(50ms);
      if (!c.lane(0).open()) continue;
      c.welcome_lane(0);
      c.lane(0).deliver(Refused{ErrorCode::protocol, "partition 0 is not on this shard", ""});
      CHECK_FALSE(c.lane(0).open());  // whoever is refused closes
      if (c.scheduler().open()) c.scheduler().deliver(Heartbeat{});
    }
    CHECK_THAT(c.outcome.error.message, Contains("partition 0 is not on this shard"));
    CHECK(c.loop.now() - begin >= Lane::kRefusalPatience);
  }
  SECTION("this process has no descriptors for it: the job ends, but not at once") {
    const ExpectLog away("cannot be reached for");
    const TimePoint begin = c.loop.now();
    while (c.outcome.ended == 0 && c.loop.now() - begin < 20s) {
      c.loop.run_for(50ms);
      if (c.lane(0).open()) c.lane(0).break_with(ErrorCode::os, "socket: Too many open files");
      if (c.scheduler().open()) c.scheduler().deliver(Heartbeat{});
    }
    CHECK(c.outcome.error.code == ErrorCode::os);
    CHECK_THAT(c.outcome.error.message,
               Contains("server 1 (127.0.0.1:5000) cannot be reached: socket: Too many open files"));
    CHECK(c.loop.now() - begin >= Lane::kRefusalPatience);
  }
  SECTION("silent: a hello without an answer is tried again") {
    const ExpectLog away("it does not answer the hello");
    for (int i = 0; i < 12; ++i) {
      c.loop.run_for(1s);
      c.scheduler().deliver(Heartbeat{});
    }
    CHECK(c.connects(5000) == 4);  // at the start, after 20 ms, 5 s and 10 s
    CHECK(away.seen() == 1);
  }
}

namespace {

// One lane, to a server on `host`; the worker is on "here".
struct SharingCluster : ScriptedCluster {
  explicit SharingCluster(TransportChoice choice, std::string host = "here", bool with_rdma = false,
                          std::optional<Error> without = {})
      : ScriptedCluster(config(choice)) {
    server_host = std::move(host);
    offers_rdma = with_rdma;
    no_rdma = std::move(without);
    engine.join([this](Status status) {
      joined = status.ok();
      if (!status.ok()) error = status.error();
    });
    welcome_worker();
    scheduler().deliver(job_start(1));
  }
  static ClientConfig config(TransportChoice choice) {
    ClientConfig config = default_config();
    config.host = "here";
    config.transport = choice;
    return config;
  }
  Wire& shm() {
    REQUIRE_FALSE(shared_memory.wires.empty());
    return *shared_memory.wires.back();
  }
  Wire& over_rdma() {
    REQUIRE_FALSE(rdma.wires.empty());
    return *rdma.wires.back();
  }
  void welcome(Wire& wire) {
    const auto hello = wire.next<HelloLane>();
    wire.deliver(Welcome{Term{1, 2}, Incarnation{10}, hello.server, JobRun{kRun}});
  }
  // Time in which the scheduler is there.
  void run(Duration duration) {
    for (Duration each{}; each < duration; each += 500ms) {
      loop.run_for(std::min<Duration>(500ms, duration - each));
      if (scheduler().open()) scheduler().deliver(Heartbeat{});
    }
  }
  std::uint64_t lanes() const { return engine.stats()->lanes; }
  std::uint64_t shm_lanes() const { return engine.stats()->shm_lanes; }
  std::uint64_t rdma_lanes() const { return engine.stats()->rdma_lanes; }

  bool joined = false;
  Error error;
};

}  // namespace

TEST_CASE("lane: over shared memory to a server on this host, also again") {
  for (const TransportChoice choice : {TransportChoice::automatic, TransportChoice::shm}) {
    SharingCluster c(choice);
    CHECK(c.joined);
    CHECK(c.engine.best_way() == Lane::Way::shared_memory);
    CHECK(c.shm().endpoint == Endpoint{"bps-5000-100", 0});
    CHECK(c.connects(5000) == 0);
    c.welcome(c.shm());
    CHECK(c.lanes() == 1);
    CHECK(c.shm_lanes() == 1);
    const TensorId tensor = c.declare("t", 8, {0});
    auto data = bytes_of(8, 1);
    Outcome outcome;
    REQUIRE(c.engine.begin(push_pull_of(tensor, data, data, Operation::sum, c.into(outcome))).ok());
    (void)c.shm().next<PushPull>();
    // What has worked is the only way.
    const ExpectLog away("cannot be reached for"), back("is connected again");
    c.shm().break_with(ErrorCode::unreachable, "connection reset");
    CHECK(c.lanes() == 0);
    for (int i = 0; i < 10; ++i) {
      c.run(1s);
      c.shm().break_with(ErrorCode::unreachable, "connection refused");
    }
    CHECK(c.connects(5000) == 0);
    CHECK_FALSE(c.engine.failure());
    c.run(1s);
    c.welcome(c.shm());
    (void)c.shm().next<PushPull>();
    CHECK(c.shm_lanes() == 1);
    CHECK(away.seen() == 1);
    CHECK(back.seen() == 1);
  }
}

TEST_CASE("lane: less is under way where there is no link, only sockets of this host") {
  // A lane may leave unsaid half of what of the credit is beside one partition.
  constexpr std::uint64_t kMiB = 1024 * 1024;
  const auto credit = [](Wire& wire) {
    return 2 * std::uint64_t{wire.next<HelloLane>().credit_report_bytes} + kSlice;
  };
  SharingCluster sockets(TransportChoice::tcp);
  CHECK(credit(sockets.lane(0)) == 2 * kMiB);
  SharingCluster link(TransportChoice::tcp, "there");
  CHECK(credit(link.lane(0)) == 4 * kMiB);
  SharingCluster memory(TransportChoice::automatic);
  CHECK(credit(memory.shm()) == 4 * kMiB);
  SharingCluster rdma(TransportChoice::rdma, "here", true);
  CHECK(credit(rdma.over_rdma()) == 4 * kMiB);

  // One server here, one there, which share what may be left unsaid.
  ScriptedCluster both(SharingCluster::config(TransportChoice::tcp));
  both.server_host = "here";
  both.engine.join([](Status) {});
  both.welcome_worker();
  JobStart start = both.job_start(2);
  start.lanes[1].host = "there";
  both.scheduler().deliver(start);
  const std::uint64_t unsaid = both.lane(0).next<HelloLane>().credit_report_bytes;
  CHECK(4 * unsaid + kSlice == 4 * kMiB);
}

TEST_CASE("lane: shared memory that does not work is given up for TCP, at once and for good") {
  SharingCluster c(TransportChoice::automatic);
  SECTION("nobody listens") { c.shm().break_with(ErrorCode::unreachable, "connection refused"); }
  SECTION("the hello is refused") {
    c.shm().deliver(Refused{ErrorCode::configuration, "transport tcp is set here", ""});
    CHECK_FALSE(c.shm().open());  // whoever is refused closes
  }
  SECTION("the hello is not answered") { c.run(Lane::kHelloTimeout); }
  c.loop.run_for(Duration{});
  CHECK(c.connects(5000) == 1);
  CHECK(c.lane(0).next<HelloLane>().session == Session{2});
  c.lane(0).deliver(Welcome{Term{1, 2}, Incarnation{10}, ServerId{1}, JobRun{77}});
  CHECK(c.lanes() == 1);
  CHECK(c.shm_lanes() == 0);
  c.lane(0).break_with(ErrorCode::unreachable, "connection reset");
  c.run(1s);
  CHECK(c.connects(5000) == 2);
  CHECK(c.shared_memory.wires.size() == 1);
}

TEST_CASE("lane: shared memory that has worked, and that one end has no means for any more") {
  SharingCluster c(TransportChoice::automatic);
  c.welcome(c.shm());
  const TensorId tensor = c.declare("t", 8, {0});
  auto data = bytes_of(8, 1);
  Outcome outcome;
  REQUIRE(c.engine.begin(push_pull_of(tensor, data, data, Operation::sum, c.into(outcome))).ok());
  const ExpectLog said("is not reached over shared memory");
  SECTION("here") { c.shm().break_with(ErrorCode::os, "cannot map shared memory: Cannot allocate memory"); }
  SECTION("at the server") {
    c.shm().deliver(Refused{ErrorCode::os, "cannot share memory: this process has no descriptors left", ""});
    CHECK_FALSE(c.shm().open());
  }
  SECTION("nobody says it: sessions that come to nothing, one after another") {
    for (int i = 1; i < Lane::kShortSessions; ++i) {
      c.shm().break_with(ErrorCode::peer_lost, "connection lost: closed by the peer");
      c.run(1s);
      c.welcome(c.shm());
      CHECK(c.connects(5000) == 0);
    }
    c.shm().break_with(ErrorCode::peer_lost, "connection lost: closed by the peer");
  }
  c.loop.run_for(Duration{});
  CHECK(c.connects(5000) == 1);
  (void)c.lane(0).next<HelloLane>();
  CHECK(c.lanes() == 0);
  c.lane(0).deliver(Welcome{Term{1, 2}, Incarnation{10}, ServerId{1}, JobRun{77}});
  (void)c.lane(0).next<PushPull>();
  CHECK(c.lanes() == 1);
  CHECK(c.shm_lanes() == 0);
  CHECK(said.seen() == 1);
  const std::size_t attempts = c.shared_memory.wires.size();
  c.lane(0).break_with(ErrorCode::unreachable, "connection reset");
  c.run(1s);
  CHECK(c.connects(5000) == 2);
  CHECK(c.shared_memory.wires.size() == attempts);
}

TEST_CASE("lane: sessions that break soon after their welcome are opened ever more slowly") {
  SharingCluster c(TransportChoice::tcp);
  const auto flap = [&](bool answered) {
    const std::size_t before = c.connects(5000);
    for (int i = 0; i < 100; ++i) {
      if (c.lane(0).open()) {
        c.welcome(c.lane(0));
        if (answered) {
          std::uint64_t cookie = 0;
          (void)c.lane(0).next<PushPull>(nullptr, &cookie);
          c.lane(0).sent(cookie);
          CHECK(c.lane(0).deliver(c.answer(0, 0, 8), bytes_of(8, 2)));
          return c.connects(5000) - before;
        }
        c.lane(0).break_with(ErrorCode::peer_lost, "connection lost: closed by the peer");
      }
      c.run(100ms);
    }
    return c.connects(5000) - before;
  };
  const TensorId tensor = c.declare("t", 8, {0});
  auto data = bytes_of(8, 1);
  Outcome outcome;
  REQUIRE(c.engine.begin(push_pull_of(tensor, data, data, Operation::sum, c.into(outcome))).ok());
  CHECK(flap(false) <= 16);
  CHECK_FALSE(c.engine.failure());
  c.run(Lane::kLongestPause);
  CHECK(flap(true) <= 1);
  CHECK(outcome.ended == 1);
  // One that has had an answer is opened again at once.
  const std::size_t before = c.connects(5000);
  c.lane(0).break_with(ErrorCode::peer_lost, "connection lost: closed by the peer");
  c.loop.run_for(Lane::kFirstPause);
  CHECK(c.connects(5000) == before + 1);
}

TEST_CASE("lane: TCP to another host, or where it is asked for") {
  for (const bool elsewhere : {true, false}) {
    SharingCluster c(elsewhere ? TransportChoice::automatic : TransportChoice::tcp,
                     elsewhere ? "there" : "here");
    CHECK(c.shared_memory.wires.empty());
    CHECK(c.engine.best_way() == Lane::Way::network);
    c.welcome(c.lane(0));
    CHECK(c.lanes() == 1);
    CHECK(c.shm_lanes() == 0);
  }
}

TEST_CASE("lane: where only shared memory is allowed, its failure ends the job") {
  SECTION("another host: both are named") {
    SharingCluster c(TransportChoice::shm, "there");
    CHECK_FALSE(c.joined);
    CHECK(c.error.code == ErrorCode::configuration);
    CHECK_THAT(c.error.message,
               Contains("server 1 (127.0.0.1:5000) is on host there and this worker on here"));
  }
  SECTION("nobody listens: not at once") {
    SharingCluster c(TransportChoice::shm);
    const TimePoint begin = c.loop.now();
    const ExpectLog away("cannot be reached for");
    while (!c.engine.failure() && c.loop.now() - begin < 20s) {
      c.run(50ms);
      if (c.shm().open()) c.shm().break_with(ErrorCode::unreachable, "nobody listens on bps-5000-100");
    }
    REQUIRE(c.engine.failure());
    CHECK(c.engine.failure()->code == ErrorCode::configuration);
    CHECK_THAT(c.engine.failure()->message,
               Contains("transport shm is set, and nobody listens on bps-5000-100"));
    CHECK_THAT(c.engine.failure()->advice, Contains("transport auto"));
    CHECK(c.loop.now() - begin >= Lane::kRefusalPatience);
    CHECK(c.connects(5000) == 0);
  }
  SECTION("this process has no room for it, which each session finds anew") {
    SharingCluster c(TransportChoice::shm);
    const TimePoint begin = c.loop.now();
    const ExpectLog away("cannot be reached for");
    while (!c.engine.failure() && c.loop.now() - begin < 20s) {
      c.run(50ms);
      if (!c.shm().open()) continue;
      c.welcome(c.shm());
      c.shm().break_with(ErrorCode::os, "cannot map shared memory: Cannot allocate memory");
    }
    REQUIRE(c.engine.failure());
    CHECK(c.engine.failure()->code == ErrorCode::os);
    CHECK_THAT(c.engine.failure()->message,
               Contains("cannot be reached: transport shm is set, and cannot map shared memory"));
    CHECK_THAT(c.engine.failure()->advice, Contains("transport auto"));
    CHECK(c.loop.now() - begin >= Lane::kRefusalPatience);
    CHECK(c.loop.now() - begin < 2 * Lane::kRefusalPatience);
    CHECK(c.shared_memory.wires.size() < 12);
  }
}

TEST_CASE("lane: over RDMA where it is chosen, to servers of this host and others, also again") {
  for (const char* const host : {"here", "there"}) {
    SharingCluster c(TransportChoice::rdma, host);
    CHECK(c.joined);
    CHECK(c.engine.best_way() == Lane::Way::rdma);
    CHECK(c.over_rdma().endpoint == Endpoint{"127.0.0.1", 5000});
    c.welcome(c.over_rdma());
    CHECK(c.lanes() == 1);
    CHECK(c.rdma_lanes() == 1);
    // What has worked is tried on: whether the server is dead is for the scheduler to say.
    const ExpectLog away("cannot be reached for"), back("is connected again");
    c.over_rdma().break_with(ErrorCode::peer_lost, "connection lost: RDMA device rxe1 was removed");
    for (int i = 0; i < 10; ++i) {
      c.run(1s);
      c.over_rdma().break_with(ErrorCode::unreachable, "connection refused: nobody listens there for RDMA");
    }
    CHECK_FALSE(c.engine.failure());
    c.run(1s);
    c.welcome(c.over_rdma());
    CHECK(c.rdma_lanes() == 1);
    CHECK(c.connects(5000) == 0);
    CHECK(c.shared_memory.wires.empty());
    CHECK(away.seen() == 1);
    CHECK(back.seen() == 1);
  }
}

TEST_CASE("lane: what auto chooses of what a server offers") {
  SECTION("on another host RDMA, if it is offered") {
    SharingCluster c(TransportChoice::automatic, "there", true);
    CHECK(c.engine.best_way() == Lane::Way::rdma);
    CHECK_FALSE(c.engine.shares_memory());
    c.welcome(c.over_rdma());
    CHECK(c.rdma_lanes() == 1);
    CHECK(c.connects(5000) == 0);
    CHECK(c.rdma_asked == 1);
  }
  SECTION("on this host shared memory, and devices are not even looked for") {
    SharingCluster c(TransportChoice::automatic, "here", true);
    CHECK(c.engine.best_way() == Lane::Way::shared_memory);
    CHECK(c.engine.shares_memory());
    CHECK(c.rdma_asked == 0);
  }
  SECTION("TCP where it is not offered, and devices are not looked for") {
    SharingCluster c(TransportChoice::automatic, "there");
    CHECK(c.engine.best_way() == Lane::Way::network);
    CHECK(c.rdma_asked == 0);
  }
  SECTION("TCP where this worker has none, which whoever can mend it is to see") {
    const ExpectLog said(
        "servers offer RDMA, and this worker goes without, over TCP: this host has no RDMA device");
    SharingCluster c(TransportChoice::automatic, "there", true,
                     make_error(ErrorCode::os, "this host has no RDMA device"));
    CHECK(c.joined);
    CHECK(c.engine.best_way() == Lane::Way::network);
    CHECK(c.connects(5000) == 1);
    CHECK(c.rdma_asked == 1);
    CHECK(said.seen() == 1);
  }
  SECTION("what is set, whatever is offered") {
    SharingCluster tcp(TransportChoice::tcp, "there", true);
    CHECK(tcp.connects(5000) == 1);
    SharingCluster shm(TransportChoice::shm, "here", true);
    CHECK(shm.engine.best_way() == Lane::Way::shared_memory);
    CHECK(tcp.rdma_asked + shm.rdma_asked == 0);
    SharingCluster without(TransportChoice::rdma, "there", true,
                           make_error(ErrorCode::os, "this host has no RDMA device"));
    CHECK_FALSE(without.joined);
    CHECK(without.error.message == "this host has no RDMA device");
  }
}

TEST_CASE("lane: offered RDMA that has worked is tried on for a while, then it is TCP for good") {
  SharingCluster c(TransportChoice::automatic, "there", true);
  c.welcome(c.over_rdma());
  const ExpectLog away("cannot be reached for"), said("is not reached over RDMA"), back("is connected again");
  c.over_rdma().break_with(ErrorCode::peer_lost, "connection lost: RDMA device rxe1 was removed");
  const TimePoint begin = c.loop.now();
  while (c.connects(5000) == 0 && c.loop.now() - begin < 20s) {
    c.run(50ms);
    if (c.over_rdma().open())
      c.over_rdma().break_with(ErrorCode::unreachable, "connection refused: nobody listens there for RDMA");
  }
  CHECK(c.loop.now() - begin >= Lane::kRefusalPatience);
  CHECK(c.loop.now() - begin <= Lane::kRefusalPatience + 2 * Lane::kLongestPause);
  c.welcome(c.lane(0));
  CHECK(c.lanes() == 1);
  CHECK(c.rdma_lanes() == 0);
  CHECK_FALSE(c.engine.failure());
  CHECK(said.seen() == 1);
}

TEST_CASE(
    "lane: where only RDMA is allowed, memory that cannot be pinned any more ends the job, not at once") {
  SharingCluster c(TransportChoice::rdma);
  c.welcome(c.over_rdma());
  const ExpectLog away("cannot be reached for");
  c.over_rdma().break_with(ErrorCode::peer_lost, "connection lost");
  const TimePoint begin = c.loop.now();
  while (!c.engine.failure() && c.loop.now() - begin < 20s) {
    c.run(50ms);
    if (c.over_rdma().open())
      c.over_rdma().break_with(ErrorCode::out_of_memory, "rejected by the peer: cannot pin");
  }
  REQUIRE(c.engine.failure());
  CHECK(c.engine.failure()->code == ErrorCode::out_of_memory);
  CHECK_THAT(c.engine.failure()->message, Contains("transport rdma is set, and rejected by the peer"));
  CHECK(c.loop.now() - begin >= Lane::kRefusalPatience);
}

TEST_CASE("lane: where only RDMA is allowed, a server without it ends the job, not at once") {
  SharingCluster c(TransportChoice::rdma);
  const TimePoint begin = c.loop.now();
  const ExpectLog away("cannot be reached for");
  while (!c.engine.failure() && c.loop.now() - begin < 20s) {
    c.run(50ms);
    if (c.over_rdma().open())
      c.over_rdma().break_with(ErrorCode::unreachable, "connection refused: nobody listens there for RDMA");
  }
  REQUIRE(c.engine.failure());
  CHECK(c.engine.failure()->code == ErrorCode::configuration);
  CHECK_THAT(c.engine.failure()->message, Contains("server 1 (127.0.0.1:5000)") &&
                                              Contains("transport rdma is set, and connection refused"));
  CHECK_THAT(c.engine.failure()->advice, Contains("--transport rdma"));
  CHECK(c.loop.now() - begin >= Lane::kRefusalPatience);
  CHECK(c.connects(5000) == 0);
}

}  // namespace bps::testing

// The scheduler is lost, and there again: what a server does meanwhile, what it says back, and that it does
// nothing twice.
#include "proto/base/log/log.h"
#include "server/testing/server_harness.h"

namespace bps::server_test {
namespace {

struct Attaching : World {
  explicit Attaching(std::uint32_t shards = 2) : World(shards) { options.heartbeat_interval = 20ms; }

  void lose() { scheduler.reset(); }
  const HelloServer& next_hello() {
    until([&] { return scheduler != nullptr && scheduler->find<HelloServer>() != nullptr; });
    return *scheduler->find<HelloServer>();
  }
  void welcome(Term with, ServerId server_id = ServerId{5}, Incarnation life = Incarnation{7}) {
    scheduler->messages.clear();
    scheduler->connection().send(Welcome{with, life, server_id, JobRun{}});
  }
  // Until Attached has come; what was said is in `messages`.
  void come_back(Term with = Term{1, 99}) {
    next_hello();
    welcome(with);
    until([&] { return scheduler->find<Attached>() != nullptr; });
  }
  template <class T>
  std::vector<T> all() const {
    std::vector<T> found;
    for (const Message& message : scheduler->messages) {
      if (const T* one = std::get_if<T>(&message)) found.push_back(*one);
    }
    return found;
  }
  // What was sent before is here now, and answered.
  void settle() {
    const std::size_t frames = scheduler->frames;
    until([&] { return scheduler->frames > frames + 2; });  // heartbeats
  }
  void sum(std::uint64_t round, std::uint32_t partition, Peer& a, Peer& b) {
    const std::vector<float> one{1, 2}, two{10, 20};
    a.messages.clear();
    b.messages.clear();
    push(a, kRun, partition, one, round);
    push(b, kRun, partition, two, round);
    until([&] { return a.find<Aggregate>() && b.find<Aggregate>(); });
    CHECK(a.payload == std::vector<float>{11, 22});
    CHECK(b.payload == std::vector<float>{11, 22});
  }
  static OpenJob job(std::uint64_t request = 3) {
    OpenJob open = testing::job_of(kRun, 2);
    open.request = request;
    return open;
  }

  const ExpectLog lost{"is lost: "};
  const ExpectLog back{"is there again after"};
};

TEST_CASE("attach: lanes go on without the scheduler, which hears what is here when it is back") {
  Attaching world;
  world.serve();
  REQUIRE(world.ask(Attaching::job()).code == ErrorCode::ok);
  DeclareSlices slices = World::slices(kRun, 1, 2, 2);
  REQUIRE(world.ask(slices).code == ErrorCode::ok);
  REQUIRE(world.ask(DeclareSlices{5, kRun, Epoch{4}, false, {}}).code == ErrorCode::ok);
  Peer& a = world.lane(kRun, 0, 0);
  world.lose();
  Peer& b = world.lane(kRun, 1, 0);
  world.sum(0, 10, a, b);

  const HelloServer hello = world.next_hello();
  CHECK(hello.term == world.term);
  CHECK(hello.incarnation == world.incarnation);
  CHECK(hello.server == ServerId{5});
  CHECK(hello.data == world.server->endpoint());
  world.come_back();
  OpenJob open = Attaching::job(0);
  open.epoch = slices.epoch = Epoch{4};
  slices.request = 0;
  CHECK(world.scheduler->messages == std::vector<Message>{open, slices, Attached{}});
  // Who has dropped a tensor is still there.
  world.scheduler->connection().send(WorkerLeft{kRun, Rank{0}, true, {TensorId{1}}});
  world.scheduler->connection().send(WorkerLeft{kRun, Rank{1}, true});
  world.settle();
  world.lose();
  world.come_back();
  CHECK(world.all<WorkerLeft>() == std::vector<WorkerLeft>{{kRun, Rank{1}, true}});
  CHECK(world.stopped == std::nullopt);
}

TEST_CASE("attach: what is asked again is acknowledged and not done again") {
  Attaching world;
  world.serve();
  DeclareSlices slices = World::slices(kRun, 1, 2, 2);
  slices.request = 4;
  SECTION("it was done, and acknowledged to a connection that is gone") {
    world.scheduler->connection().send(Attaching::job());
    world.scheduler->connection().send(slices);
    world.until([&] { return world.all<Ack>().size() == 2; });
  }
  SECTION("it is perhaps still under way") {
    world.scheduler->connection().send(Attaching::job());
    world.scheduler->connection().send(slices);
    world.until([&] { return world.server->ledger().reserved() > 0; });
  }
  const std::uint64_t reserved = world.server->ledger().reserved();
  Peer& a = world.lane(kRun, 0, 0);
  Peer& b = world.lane(kRun, 1, 0);
  world.sum(0, 10, a, b);
  world.lose();
  world.come_back();
  world.settle();
  CHECK(world.all<Ack>().empty());
  CHECK(world.ask(Attaching::job()).code == ErrorCode::ok);
  CHECK(world.ask(slices).code == ErrorCode::ok);
  CHECK(world.server->ledger().reserved() == reserved);
  world.sum(1, 10, a, b);  // the rounds go on where they were

  slices.tensors[0].partitions[0].elements = 3;
  CHECK(world.ask(slices).code == ErrorCode::protocol);
  DeclareSlices more = World::slices(kRun, 1, 2, 2);
  more.tensors[0].partitions.push_back({PartitionId{15}, 0, 2});
  CHECK(world.ask(more).code == ErrorCode::ok);
  world.sum(0, 15, a, b);
  for (int i = 0; i < 2; ++i) {
    CHECK(world.ask(DropTensors{6, kRun, {TensorId{1}}}).code == ErrorCode::ok);
    world.settle();
    CHECK(world.all<Ack>() == std::vector<Ack>{{6, {}}});
    CHECK(world.server->ledger().reserved() < reserved);
  }
  world.scheduler->connection().send(JobEnded{kRun, {}});
  world.scheduler->connection().send(JobEnded{kRun, {}});
  world.scheduler->connection().send(WorkerLeft{kRun, Rank{0}, false});
  world.scheduler->connection().send(DropTensors{0, kRun, {TensorId{1}}});
  world.until([&] { return world.server->ledger().reserved() == 0; });
}

TEST_CASE("attach: a declaration that waits for memory is forgotten, a drop behind it is not") {
  Attaching world(1);
  world.serve();
  for (const std::uint64_t run : {1, 2})
    REQUIRE(world.open_job(JobRun{run}, 1).code == ErrorCode::ok);
  REQUIRE(world.declare(JobRun{1}, 1, 3 * kMiB).code == ErrorCode::ok);
  REQUIRE(world.declare(JobRun{2}, 1, kMiB / 2).code == ErrorCode::ok);
  Peer& lane = world.lane(JobRun{1}, 0, 0);
  // Its memory is free when the lane is closed.
  world.scheduler->connection().send(JobEnded{JobRun{1}, make_error(ErrorCode::peer_lost, "over")});
  DeclareSlices waits = World::slices(JobRun{2}, 2, 1, 2 * kMiB);
  waits.request = 9;
  world.scheduler->connection().send(waits);
  world.scheduler->connection().send(DropTensors{0, JobRun{2}, {TensorId{1}}});
  world.until([&] { return lane.find<Refused>() != nullptr; });
  world.settle();
  world.lose();
  world.come_back();
  CHECK(world.all<DeclareSlices>().empty());
  world.scheduler->messages.clear();
  world.scheduler->connection().send(waits);
  lane.close();
  world.until([&] { return world.scheduler->find<Ack>() != nullptr; });
  CHECK(world.all<Ack>() == std::vector<Ack>{{9, {}}});
}

TEST_CASE("attach: a server that drains says so again") {
  Attaching world;
  world.serve();
  REQUIRE(world.open_job(kRun, 1).code == ErrorCode::ok);
  SECTION("that it had said") {
    world.server->drain();
    world.until([&] { return world.scheduler->find<Leave>() != nullptr; });
    world.lose();
  }
  SECTION("that it was told meanwhile") {
    world.lose();
    world.server->drain();
  }
  world.come_back();
  world.until([&] { return world.scheduler->find<Leave>() != nullptr; });
  CHECK(std::holds_alternative<Leave>(world.scheduler->messages.back()));
  CHECK_FALSE(world.stopped);
  world.scheduler->connection().send(Left{});
  world.until([&] { return world.stopped.has_value(); });
  CHECK(world.stopped->code == ErrorCode::ok);
}

TEST_CASE("attach: a server that nobody uses goes at once when it is told to, also without a scheduler") {
  Attaching world;
  world.serve();
  world.listener.reset();
  SECTION("that is away already") {
    world.lose();
    world.until([&] { return world.lost.seen() == 1; });
    world.server->drain();
  }
  SECTION("that goes after it was told") {
    world.server->drain();
    world.lose();
  }
  world.until([&] { return world.stopped.has_value(); });
  CHECK(world.stopped->code == ErrorCode::ok);
}

TEST_CASE("attach: a server that jobs use waits for a scheduler that is away, for a while") {
  Attaching world;
  const bool comes_back = GENERATE(false, true);
  world.options.drain_timeout = comes_back ? 60s : 300ms;
  world.serve();
  REQUIRE(world.open_job(kRun, 1).code == ErrorCode::ok);
  const ExpectLog waits("only it can move 1 job to other servers; waits for it, for at most");
  world.lose();
  world.until([&] { return world.lost.seen() == 1; });
  if (!comes_back) {
    world.listener.reset();
    world.server->drain();
    const TimePoint begin = world.loop.now();
    world.until([&] { return world.stopped.has_value(); });
    CHECK(world.loop.now() - begin >= 300ms);
    CHECK(world.stopped->code == ErrorCode::peer_lost);
    CHECK_THAT(world.stopped->message, Catch::Contains("was to drain while 1 job used it"));
    CHECK(waits.seen() == 1);
  }
  if (comes_back) {
    world.server->drain();
    world.come_back();
    world.until([&] { return world.scheduler->find<Leave>() != nullptr; });
    world.scheduler->connection().send(Left{});
    world.until([&] { return world.stopped.has_value(); });
    CHECK(world.stopped->code == ErrorCode::ok);
  }
}

TEST_CASE("attach: a scheduler that stays away for too long ends the server with the reason") {
  Attaching world;
  world.options.scheduler_grace = 400ms;
  SECTION("closed") {
    world.serve();
    world.listener.reset();
    world.lose();
  }
  SECTION("silent, and nobody there any more") {
    world.options.heartbeat_interval = 20ms;
    world.options.heartbeat_timeout = 200ms;
    world.serve();
    world.listener.reset();
  }
  SECTION("silent, also when it is asked again") {
    world.options.heartbeat_interval = 20ms;
    world.options.heartbeat_timeout = 200ms;
    world.serve();
  }
  SECTION("it breaks off whenever it has welcomed") {
    world.serve();
    world.lose();
    while (!world.stopped) {
      world.until([&] {
        return world.stopped || (world.scheduler && world.scheduler->find<HelloServer>() != nullptr);
      });
      if (world.stopped) break;
      world.welcome(world.term);
      world.until([&] { return world.stopped || world.scheduler->find<Attached>() != nullptr; });
      world.lose();
    }
    CHECK(world.lost.seen() == 1);
  }
  const TimePoint begin = world.loop.now();
  world.until([&] { return world.stopped.has_value(); });
  CHECK(world.loop.now() - begin < 20s);
  CHECK(world.stopped->code == ErrorCode::unreachable);
  CHECK(world.stopped->message.find("the scheduler at " + to_string(world.options.scheduler) +
                                    " is lost: ") == 0);
  CHECK(world.stopped->message.find("tried for 0.4 s to reach it again") != std::string::npos);
}

TEST_CASE("attach: without grace the server ends with the connection") {
  World world;
  world.options.scheduler_grace = 0s;
  world.serve();
  world.scheduler->close();
  world.until([&] { return world.stopped.has_value(); });
  CHECK(world.stopped->code == ErrorCode::unreachable);
}

TEST_CASE("attach: a later term is taken and said from then on; an older one is not used") {
  Attaching world;
  world.serve();
  world.lose();
  world.come_back(Term{5, 1});
  world.lose();
  CHECK(world.next_hello().term == Term{5, 1});
  const ExpectLog old("is not used: it is an old one");
  for (int i = 0; i < 2; ++i) {
    world.welcome(Term{4, 1});
    world.until([&] { return world.scheduler->closed.has_value(); });
    world.lose();
    CHECK(world.next_hello().term == Term{5, 1});
  }
  CHECK(old.seen() == 1);
  world.come_back(Term{6, 1});
  CHECK_FALSE(world.stopped);
}

TEST_CASE("attach: what is refused in words is final, and so is being taken for somebody else") {
  Attaching world;
  world.serve();
  world.lose();
  world.next_hello();
  SECTION("refused") {
    world.scheduler->connection().send(Refused{ErrorCode::peer_lost, "server 5 has been declared dead", ""});
    world.until([&] { return world.stopped.has_value(); });
    CHECK(world.stopped->code == ErrorCode::peer_lost);
    CHECK(world.stopped->message.find("has been declared dead") != std::string::npos);
  }
  SECTION("another server") {
    world.welcome(world.term, ServerId{6});
    world.until([&] { return world.stopped.has_value(); });
    CHECK(world.stopped->code == ErrorCode::protocol);
  }
  SECTION("another life") {
    world.welcome(world.term, ServerId{5}, Incarnation{8});
    world.until([&] { return world.stopped.has_value(); });
    CHECK(world.stopped->code == ErrorCode::protocol);
  }
}

}  // namespace
}  // namespace bps::server_test

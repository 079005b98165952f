// A job that goes on without the workers that it loses.
#include "scheduler/testing/attach_harness.h"

namespace bps {
namespace {

using namespace testing;

HelloWorker shrinking(std::uint32_t rank, std::uint32_t world) {
  HelloWorker hello = CoreHarness::hello("j", rank, world);
  hello.worker_loss = WorkerLoss::shrink;
  return hello;
}

std::vector<PeerId> running(CoreHarness& h, std::uint32_t world) {
  std::vector<PeerId> peers;
  for (std::uint32_t rank = 0; rank < world; ++rank)
    peers.push_back(h.say_hello(shrinking(rank, world)));
  for (const PeerId peer : peers)
    REQUIRE(h.got<JobStart>(peer).size() == 1);
  return peers;
}

// And has a tensor.
std::vector<PeerId> declared(CoreHarness& h, std::uint32_t world) {
  std::vector<PeerId> peers = running(h, world);
  for (const PeerId peer : peers)
    h.say(peer, declare_one(1, "w", 100'000));
  return peers;
}

}  // namespace

TEST_CASE("shrink: servers hear of a loss, then workers, and the job goes on") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  const auto workers = running(h, 3);
  h.stop_acking(b);
  h.kill(workers[2]);
  for (const PeerId server : {a, b}) {
    REQUIRE(h.got<Shrunk>(server).size() == 1);
    const Shrunk shrunk = h.last<Shrunk>(server);
    CHECK(shrunk.lost == std::vector{Rank{2}});
    CHECK(shrunk.generation == Generation{2});
    CHECK_THAT(shrunk.reason, Contains("rank 2 (host gpu-2, ") && Contains("connection lost 0.3 s ago"));
  }
  CHECK(h.got<Shrunk>(workers[0]).empty());
  h.say(b, Ack{h.last<Shrunk>(b).request, {}});
  for (const PeerId worker : {workers[0], workers[1]}) {
    REQUIRE(h.got<Shrunk>(worker).size() == 1);
    CHECK(h.last<Shrunk>(worker).request == 0);
    CHECK(h.got<JobFailed>(worker).empty());
  }
  h.kill(workers[0]);
  CHECK(h.last<Shrunk>(a).generation == Generation{3});
  // The last one cannot be done without.
  h.kill(workers[1]);
  CHECK(h.core.job_count() == 0);
  CHECK(h.last<JobEnded>(a).error.code == ErrorCode::peer_lost);
}

TEST_CASE("shrink: who is gone is not counted as there, and has been gone for ever longer") {
  CoreHarness h;
  h.server("a");
  const auto workers = running(h, 3);
  h.kill(workers[2]);
  const PeerId admin = h.say_hello(HelloAdmin{});
  std::uint64_t before = 0;
  for (int i = 0; i < 2; ++i) {
    h.run(seconds(2));
    h.say(admin, AskCluster{1});
    const JobState job = h.last<ClusterState>(admin).jobs.at(0);
    CHECK(job.world_size == 3);
    CHECK(job.joined == 2);
    REQUIRE(job.absentees.size() == 1);
    CHECK(job.absentees[0].state == PartyState::gone);
    CHECK(job.absentees[0].silent_ms >= before + 2000);
    CHECK(job.absentees[0].silent_ms < before + 3000);
    before = job.absentees[0].silent_ms;
  }
}

TEST_CASE("shrink: a server that dies does not hold up what workers hear; one that comes is told") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  const auto workers = declared(h, 3);
  h.stop_acking(b);
  h.kill(workers[1]);
  CHECK(h.got<Shrunk>(workers[0]).empty());
  const PeerId c = h.server("c");
  h.kill(b);
  CHECK(h.got<Shrunk>(workers[0]).size() == 1);
  REQUIRE(h.got<Shrunk>(c).size() == 1);
  CHECK(h.last<Shrunk>(c).lost == std::vector{Rank{1}});
  CHECK(h.last<OpenJob>(c).members.size() == 3);
  CHECK(h.got<WorkerLeft>(c).empty());
  CHECK(h.got<Moved>(workers[0]).size() == 1);
  CHECK(h.got<Shrunk>(a).size() == 1);
}

TEST_CASE("shrink: a server that drains before it acknowledges does not hold up what workers hear") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  const auto workers = declared(h, 4);
  h.stop_acking(a);
  h.stop_acking(b);
  h.say(b, Leave{});
  h.kill(workers[3]);
  REQUIRE(h.got<Shrunk>(b).size() == 1);
  h.say(a, Ack{h.last<DeclareSlices>(a).request, {}});
  REQUIRE(h.got<Left>(b).size() == 1);
  h.lose(b);
  CHECK(h.got<Shrunk>(workers[0]).empty());
  h.say(a, Ack{h.last<Shrunk>(a).request, {}});
  CHECK(h.got<Shrunk>(workers[0]).size() == 1);
  h.kill(workers[2]);
  h.say(a, Ack{h.last<Shrunk>(a).request, {}});
  CHECK(h.got<Shrunk>(workers[0]).size() == 2);
}

TEST_CASE("shrink: barriers, farewells and declarations do not wait for the lost") {
  CoreHarness h;
  h.auto_settle = false;
  h.server();
  const auto workers = running(h, 4);
  for (const PeerId worker : {workers[0], workers[1], workers[2]})
    h.say(worker, Barrier{0});
  h.say(workers[0], Leave{});
  h.say(workers[1], Settled{1});
  h.say(workers[2], Settled{1});
  CHECK(h.got<BarrierDone>(workers[1]).empty());
  CHECK(h.got<Left>(workers[0]).empty());
  h.kill(workers[3]);
  REQUIRE(h.got<BarrierDone>(workers[1]).size() == 1);
  CHECK(h.last<BarrierDone>(workers[1]).error.code == ErrorCode::ok);
  CHECK(h.got<Left>(workers[0]).size() == 1);
  for (const PeerId worker : {workers[1], workers[2]}) {
    h.say(worker, declare_one(1, "w", 10));
    CHECK(h.last<Declared>(worker).tensors[0].error.code == ErrorCode::ok);
    h.say(worker, Leave{});
  }
  CHECK(h.core.job_count() == 0);
  CHECK(h.got<JobFailed>(workers[1]).empty());
}

TEST_CASE("shrink: a rank that has left is no loss; a lost one takes nobody's place") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = running(h, 3);
  h.say(workers[2], Leave{});
  h.lose(workers[2]);
  h.run(milliseconds(400));
  CHECK(h.got<Shrunk>(server).empty());
  // A newcomer waits while its predecessor is only suspected; then it is refused.
  CoreHarness other;
  other.server();
  const auto others = running(other, 2);
  other.lose(others[1]);
  const PeerId newcomer = other.say_hello(shrinking(1, 2));
  CHECK(other.is_alive(newcomer));
  other.run(milliseconds(400));
  const Refused refused = other.refusal(newcomer);
  CHECK(refused.code == ErrorCode::configuration);
  CHECK_THAT(refused.message,
             Contains("job j goes on without rank 1, and takes no new one: rank 1 (host gpu-1"));
  CHECK(other.got<JobFailed>(others[0]).empty());
}

TEST_CASE("shrink: one that hangs is told that it is dead; who breaks a rule is lost, too") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = running(h, 3);
  h.hang(workers[2]);
  h.run(milliseconds(3200));
  CHECK_THAT(h.refusal(workers[2]).message, Contains("declared dead"));
  CHECK(h.last<Shrunk>(server).lost == std::vector{Rank{2}});
  h.say(workers[1], Welcome{});
  h.run(milliseconds(400));
  CHECK(h.last<Shrunk>(server).lost == std::vector{Rank{1}});
  CHECK(h.got<JobFailed>(workers[0]).empty());
}

TEST_CASE("shrink: before it runs, and with other settings on another rank, a job does not") {
  CoreHarness h;
  h.auto_ack = false;
  h.server();
  const PeerId first = h.say_hello(shrinking(0, 2));
  const PeerId differs = h.worker("j", 1, 2);
  CHECK(h.refusal(differs).message ==
        "worker-loss of job j differs: rank 0 (host gpu-0) has shrink, rank 1 (host gpu-1) has fail");
  HelloWorker unequal = shrinking(1, 2);
  unequal.unequal_sums = true;
  CHECK_THAT(h.refusal(h.say_hello(unequal)).message, Contains("unequal-sums of job j differs"));
  const PeerId second = h.say_hello(shrinking(1, 2));
  h.kill(second);
  CHECK(h.got<JobFailed>(first).size() == 1);
}

TEST_CASE("shrink: who was lost before the scheduler was started again is unknown to newcomers, too") {
  CoreHarness old;
  Past past(old, WorkerLoss::shrink);
  old.kill(past.workers[1]);
  past.learn(old);
  REQUIRE(past.memory[0].start->generation == Generation{2});
  CoreHarness h(2, later());
  const PeerId newcomer = h.server("cpu-3");
  past.server_memory[0].come_back(h);
  past.server_memory[1].come_back(h);
  const PeerId back = past.memory[0].come_back(h);
  h.run(seconds(8));
  CHECK(h.got<JobFailed>(back).empty());
  REQUIRE(h.got<OpenJob>(newcomer).size() == 1);
  CHECK(h.last<OpenJob>(newcomer).generation == Generation{2});
  REQUIRE(h.last<OpenJob>(newcomer).members.size() == 1);
  CHECK(h.last<OpenJob>(newcomer).members[0].rank == Rank{0});
  CHECK(h.got<Shrunk>(newcomer).empty());
}

TEST_CASE("shrink: a worker that comes back when the job has gone on without it is refused") {
  CoreHarness old;
  Past past(old, WorkerLoss::shrink);
  CoreHarness h(2, later());
  past.server_memory[0].come_back(h);
  past.server_memory[1].come_back(h);
  const PeerId back = past.memory[0].come_back(h);
  h.run(seconds(8));
  REQUIRE(h.got<Shrunk>(back).size() == 1);
  const PeerId late = past.memory[1].come_back(h);
  CHECK_FALSE(h.is_alive(late));
  CHECK(h.refusal(late).code == ErrorCode::peer_lost);
  CHECK(h.got<JobFailed>(back).empty());
}

TEST_CASE("shrink: who is lost at one time is told in one message to each") {
  constexpr std::uint32_t kWorld = 60;
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = running(h, kWorld);
  for (std::uint32_t rank = 20; rank < kWorld; ++rank)
    h.lose(workers[rank]);
  h.run(milliseconds(400));
  for (const PeerId node : {server, workers[0], workers[19]}) {
    REQUIRE(h.got<Shrunk>(node).size() == 1);
    const Shrunk shrunk = h.last<Shrunk>(node);
    CHECK(shrunk.generation == Generation{2});
    CHECK(shrunk.lost.size() == (node == server ? 40 : 0));
    CHECK(shrunk.workers == 20);
    CHECK_THAT(shrunk.reason, Contains("of job j is gone: ") && Contains("; and others with them"));
  }
  h.kill(workers[19]);
  CHECK(h.last<Shrunk>(workers[0]).generation == Generation{3});
  CHECK(h.last<Shrunk>(workers[0]).workers == 19);
}

}  // namespace bps

// Runs whose nodes come back to another scheduler, and not all of them, or not as they were.
#include <algorithm>
#include <bitset>

#include "scheduler/testing/attach_harness.h"

namespace bps {

using namespace testing;

TEST_CASE("restart: a server that the scheduler before had declared dead comes in like a new one") {
  CoreHarness old;
  Past past(old);
  const ServerMemory woken = past.server_memory[0];
  old.kill(past.servers[0]);
  past.learn(old);
  REQUIRE(past.memory[0].end.closed.size() == 1);
  CoreHarness h(2, later());
  const PeerId s0 = woken.come_back(h);
  const PeerId s1 = past.server_memory[1].come_back(h);
  const PeerId workers[] = {past.memory[0].come_back(h), past.memory[1].come_back(h)};
  CHECK(h.got<JobEnded>(s0).size() == 1);
  REQUIRE(h.got<OpenJob>(s0).size() == 1);
  CHECK(h.got<DropTensors>(s0).empty());
  for (const PeerId worker : workers) {
    CHECK(h.got<JobFailed>(worker).empty());
    REQUIRE(h.got<Moved>(worker).size() == 1);
    CHECK(h.last<Moved>(worker).lanes.size() == 1);
  }
  SECTION("and may die again") {
    h.kill(s0);
    h.server("cpu-3");
    h.say(workers[0], declare_one(2, "later", kElements));
    h.say(workers[1], declare_one(2, "later", kElements));
    CHECK(h.got<Declared>(workers[1]).size() == 1);
    CHECK(h.got<JobFailed>(workers[0]).empty());
  }
  SECTION("and takes its part") {
    h.say(workers[0], declare_one(2, "later", kElements));
    CHECK_FALSE(h.got<DeclareSlices>(s0).empty());
    CHECK(h.got<Declared>(workers[0]).size() == 1);
  }
  CHECK(h.is_alive(s1));
}

TEST_CASE("restart: a run that has lost all that had started fails, though one had left before") {
  CoreHarness old;
  old.auto_settle = false;
  const PeerId server = old.server();
  Memories past(old, "j", 3, 0);
  old.say(past.worker_peers[2], Leave{});
  past.learn(old, {server});
  CoreHarness h(2, later());
  const PeerId w0 = past.workers[0].come_back(h);
  const PeerId s = past.servers[0].come_back(h);
  h.lose(w0);
  h.run(seconds(8));
  CHECK(h.core.job_count() == 0);
  CHECK(h.last<JobEnded>(s).error.code == ErrorCode::peer_lost);
  h.running_job("j", 3);
}

TEST_CASE("restart: of a run in which nobody is there that had started nobody stays but who is there") {
  CoreHarness old;
  old.auto_settle = false;
  const PeerId server = old.server();
  Memories past(old, "j", 2, 0);
  old.say(past.worker_peers[1], Leave{});
  past.learn(old, {server});
  past.workers[0].start.reset();  // was on its way
  CoreHarness h(2, later());
  past.servers[0].come_back(h);
  const PeerId w0 = past.workers[0].come_back(h);
  // It says its hello, and no more.
  const PeerId w1 = h.say_hello(past.workers[1].hello);
  h.run(seconds(2));
  SECTION("who says too late that it had started is dropped") {
    h.run(seconds(6));
    h.say(w1, Attached{});
    h.say(w1, Leave{});
  }
  SECTION("who has left goes") { h.lose(w1); }
  h.run(seconds(8));
  const PeerId newcomer = h.worker("j", 1, 2);
  CHECK(h.got<JobStart>(w0).size() == 1);
  CHECK(h.got<JobStart>(newcomer).size() == 1);
}

TEST_CASE("restart: servers that are new to a run that had shrunk hear of its generation") {
  CoreHarness old;
  std::vector<PeerId> servers{old.server("cpu-1"), old.server("cpu-2")};
  Memories past(old, "j", 3, 1, WorkerLoss::shrink);
  const OpenJob at_start = old.last<OpenJob>(servers[0]);
  old.kill(past.worker_peers[2]);
  REQUIRE(old.got<Shrunk>(past.worker_peers[0]).size() == 1);
  past.learn(old, servers);
  CoreHarness h(2, later());
  SECTION("one that comes after the restart") {
    past.servers[0].come_back(h);
    const PeerId s1 = past.servers[1].come_back(h);
    const PeerId w0 = past.workers[0].come_back(h);
    const PeerId w1 = past.workers[1].come_back(h);
    h.run(seconds(8));
    const PeerId late = h.server("cpu-3");
    h.kill(s1);
    REQUIRE(h.got<OpenJob>(late).size() == 1);
    CHECK(h.last<OpenJob>(late).generation == Generation{2});
    CHECK(h.last<OpenJob>(late).members.size() == 2);
    CHECK(h.got<Shrunk>(late).empty());
    CHECK(h.got<Moved>(w0).size() == 1);
    SECTION("and of what is lost later") {
      h.kill(w1);
      CHECK(h.last<Shrunk>(late).generation == Generation{3});
    }
  }
  SECTION("one that had the run opened, and not heard of the loss") {
    const bool lists_it = GENERATE(true, false);
    CAPTURE(lists_it);
    OpenJob& open = past.servers[1].runs.at(at_start.job_run).open;
    if (lists_it) open.members = at_start.members;
    open.generation = Generation{1};
    past.servers[0].come_back(h);
    const PeerId s1 = past.servers[1].come_back(h);
    const PeerId w0 = past.workers[0].come_back(h);
    past.workers[1].come_back(h);
    h.run(seconds(8));
    CHECK(h.got<JobFailed>(w0).empty());
    REQUIRE(h.got<Shrunk>(s1).size() == 1);
    CHECK(h.last<Shrunk>(s1).generation == Generation{2});
    CHECK(h.last<Shrunk>(s1).lost == std::vector{Rank{2}});
    CHECK(h.got<Shrunk>(w0).empty());
  }
}

TEST_CASE("restart: a worker that is gone with all servers that knew it is lost") {
  const WorkerLoss loss = GENERATE(WorkerLoss::fail, WorkerLoss::shrink);
  CAPTURE(loss);
  CoreHarness old;
  const PeerId server = old.server("cpu-1");
  Memories past(old, "j", 4, 1, loss);
  past.learn(old, {server});
  CoreHarness h(2, later());
  const PeerId fresh = h.server("cpu-2");
  const PeerId w0 = past.workers[0].come_back(h);
  const PeerId w2 = past.workers[2].come_back(h);
  const PeerId w3 = past.workers[3].come_back(h);
  h.run(seconds(8));
  if (loss == WorkerLoss::fail) {
    CHECK(h.last<JobFailed>(w0).error.code == ErrorCode::peer_lost);
    CHECK_THAT(h.last<JobFailed>(w0).error.message, Catch::Contains("rank 1"));
    return;
  }
  REQUIRE(h.got<OpenJob>(fresh).size() == 1);
  CHECK(h.last<OpenJob>(fresh).generation == Generation{2});
  CHECK(h.last<OpenJob>(fresh).members.size() == 3);
  for (const PeerId worker : {w0, w2, w3}) {
    CHECK(h.got<JobFailed>(worker).empty());
    REQUIRE(h.got<Shrunk>(worker).size() == 1);
    CHECK(h.last<Shrunk>(worker).workers == 3);
    CHECK(h.last<Shrunk>(worker).generation > h.last<OpenJob>(fresh).generation);
  }
  h.kill(w3);
  CHECK(h.last<Shrunk>(w0).workers == 2);
}

TEST_CASE("restart: workers hear of a loss that only servers had heard of") {
  CoreHarness old;
  const PeerId server = old.server("cpu-1");
  Memories past(old, "j", 3, 1, WorkerLoss::shrink);
  past.learn(old, {server});
  const std::vector<WorkerMemory> before = past.workers;
  old.kill(past.worker_peers[2]);
  past.learn(old, {server});
  const bool one_has_heard = GENERATE(true, false);
  CAPTURE(one_has_heard);
  CoreHarness h(2, later());
  past.servers.back().come_back(h);
  const PeerId w0 = (one_has_heard ? past.workers : before)[0].come_back(h);
  const PeerId w1 = before[1].come_back(h);
  h.run(seconds(8));
  for (const PeerId worker : {w0, w1}) {
    CHECK(h.got<JobFailed>(worker).empty());
    REQUIRE(h.got<Shrunk>(worker).size() == 1);
    CHECK(h.last<Shrunk>(worker).workers == 2);
  }
}

TEST_CASE("restart: what a job's workers say of servers ends no other job") {
  CoreHarness old;
  const PeerId server = old.server();
  Memories evil(old, "evil", 2);
  Memories good(old, "good", 1);
  evil.learn(old, {server});
  good.learn(old, {server});
  LaneTarget& lane = evil.workers[0].start->lanes.at(0);
  const auto lie = GENERATE(range(0, 4));
  CAPTURE(lie);
  switch (lie) {
    case 0: lane.incarnation = Incarnation{0xbad}; break;
    case 1: lane.incarnation = Incarnation{0}; break;
    case 2: evil.workers[0].start->members.at(0).incarnation = lane.incarnation; break;
    default: lane.server = ServerId{7}; break;
  }
  CoreHarness h(2, later());
  const PeerId liar = evil.workers[0].come_back(h);
  const PeerId w = good.workers[0].come_back(h);
  h.run(milliseconds(500));
  CHECK(h.got<JobFailed>(w).empty());
  good.servers[0].come_back(h);
  h.run(seconds(8));
  CHECK(h.got<JobFailed>(w).empty());
  h.say(w, declare_one(9, "later", 1000));
  CHECK(h.got<Declared>(w).size() == 1);
  // All that it has brought about is the end of its own.
  CHECK((h.closed.count(liar) == 1 || h.got<JobFailed>(liar).size() == 1));
}

TEST_CASE("restart: members that only a server's report names count like workers that are there") {
  CoreHarness old;
  const PeerId server = old.server();
  Memories past(old, "j", 3);
  past.learn(old, {server});
  CoreOptions options = later();
  options.max_workers = 2;
  CoreHarness h(2, options);
  const PeerId w0 = past.workers[0].come_back(h);
  past.servers[0].come_back(h);
  CHECK(h.last<JobFailed>(w0).error.code == ErrorCode::out_of_memory);
  CHECK(h.core.job_count() == 0);
}

TEST_CASE("restart: servers that have taken the numbers of others are no part of a majority") {
  CoreHarness old;
  const std::vector<PeerId> servers{old.server("cpu-1"), old.server("cpu-2")};
  Memories past(old, "j", 2, 1, WorkerLoss::shrink);
  past.learn(old, servers);
  CoreHarness h(2, later());
  h.server("new-1");
  h.server("new-2");
  const PeerId w0 = past.workers[0].come_back(h);
  h.run(seconds(15));
  CHECK_THAT(h.last<JobFailed>(w0).error.message, Contains("only 1 of its 4"));
}

TEST_CASE("restart: a server that does not come back is missed, also if nobody has its number") {
  CoreHarness old;
  const std::vector<PeerId> servers{old.server("cpu-1"), old.server("cpu-2")};
  Memories past(old, "j", 3, 0);
  const Declare declare = declare_one(1, "a", kElements);
  for (std::size_t i = 0; i < 3; ++i) {
    past.workers[i].asked[1] = declare;
    old.say(past.worker_peers[i], declare);
  }
  past.learn(old, servers);
  CoreHarness h(2, later());
  past.servers[0].come_back(h);
  std::vector<PeerId> workers;
  for (WorkerMemory& memory : past.workers) {
    memory.hello.retain = false;  // nothing can move
    workers.push_back(memory.come_back(h));
  }
  h.run(seconds(5));
  CHECK(h.got<JobFailed>(workers[0]).empty());
  h.run(seconds(2));
  CHECK_THAT(h.last<JobFailed>(workers[0]).error.message,
             Contains("server 2 (host cpu-2, ") && Contains("not come back") && Contains("retain"));
}

TEST_CASE("restart: a server that does not come back is named in the log, also if its partitions can move") {
  CoreHarness old;
  const std::vector<PeerId> servers{old.server("cpu-1"), old.server("cpu-2")};
  Memories past(old, "j", 3, 0);
  past.learn(old, servers);
  CoreHarness h(2, later());
  past.servers[0].come_back(h);
  for (const WorkerMemory& memory : past.workers)
    memory.come_back(h);
  h.run(seconds(7));
  CHECK(h.core.job_count() == 1);
  const auto names_it = [](const std::string& line) {
    return line.find("server 2 (host cpu-2, ") != std::string::npos &&
           line.find("not come back") != std::string::npos;
  };
  CHECK(std::count_if(h.log.begin(), h.log.end(), names_it) == 1);
}

TEST_CASE(
    "restart: a member with the incarnation of another rank is a contradiction, and waited for by nobody") {
  CoreHarness old;
  const std::vector<PeerId> servers{old.server("cpu-1")};
  Memories past(old, "j", 2, 0);
  past.learn(old, servers);
  WorkerMemory& worker = past.workers[0];
  ServerMemory& liar = past.servers[0];
  std::vector<Member>& members = liar.runs.begin()->second.open.members;
  SECTION("of a worker") { std::erase(members, Member(members.at(0))); }
  SECTION("of two that it names") {}
  members.back().incarnation = worker.hello.incarnation;
  CoreHarness h(2, later());
  const PeerId peer = worker.come_back(h);
  liar.come_back(h);
  if (h.is_alive(peer)) h.lose(peer);
  h.run(seconds(12));
  CHECK(h.core.job_count() == 0);
}

TEST_CASE("restart: a new server may come as soon as all runs have workers again") {
  CoreHarness old;
  const PeerId server = old.server();
  Memories past(old, "j", 1);
  past.learn(old, {server});
  CoreHarness h(2, later());
  past.servers[0].come_back(h);
  CHECK_FALSE(h.is_alive(h.server("early")));
  past.workers[0].come_back(h);
  CHECK(h.is_alive(h.server("late")));
}

TEST_CASE("restart: a new server that comes before those of the scheduler before makes room for them") {
  CoreHarness old;
  const PeerId server = old.server();
  Memories past(old, "j", 2);
  past.learn(old, {server});
  // Started again in the same second, or with a clock that is behind.
  CoreOptions options;
  options.term = GENERATE(1, 2);
  CoreHarness h(2, options);
  h.say_hello(HelloAdmin{});  // so that addresses are others
  const PeerId early = h.server("early");
  REQUIRE(h.last<Welcome>(early).server == past.servers[0].hello.server);
  const PeerId known = past.servers[0].come_back(h);
  CHECK(h.is_alive(known));
  CHECK_FALSE(h.is_alive(early));
  CHECK_THAT(h.refusal(early).message, Catch::Contains("is server 1"));
  CHECK_FALSE(h.core.superseded());
  for (const WorkerMemory& memory : past.workers)
    CHECK(h.is_alive(memory.come_back(h)));
  CHECK(h.core.server_count() == 1);
  const PeerId late = h.server("late");
  CHECK(h.last<Welcome>(late).server.value == past.servers[0].hello.server.value + 1);
}

TEST_CASE("restart: a server that comes back says how much memory it has") {
  CoreHarness old;
  Past past(old);
  CoreHarness h(2, later());
  past.server_memory[0].hello.memory_max = 12345;
  past.server_memory[0].come_back(h);
  const PeerId admin = h.say_hello(HelloAdmin{});
  h.say(admin, AskCluster{1});
  REQUIRE(h.last<ClusterState>(admin).servers.size() == 1);
  CHECK(h.last<ClusterState>(admin).servers[0].memory_max == 12345);
}

TEST_CASE(
    "restart: of two schedulers that share a run's nodes at most one goes on, if it needs all workers") {
  const WorkerLoss loss = GENERATE(WorkerLoss::fail, WorkerLoss::shrink);
  std::size_t on_both_sides = 0;
  for (unsigned split = 0; split < 32; ++split) {
    INFO("nodes that the first one keeps: " << split);
    CoreHarness old;
    const std::vector<PeerId> servers{old.server("cpu-1"), old.server("cpu-2"), old.server("cpu-3")};
    Memories past(old, "j", 2, 1, loss);
    past.learn(old, servers);
    std::vector<PeerId> nodes = past.worker_peers;
    nodes.insert(nodes.end(), servers.begin(), servers.end());
    CoreHarness h(2, later());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if ((split >> i & 1) != 0) continue;
      old.lose(nodes[i]);
      if (i < 2) {
        past.workers[i].come_back(h);
      } else {
        past.servers[i - 2].come_back(h);
      }
    }
    for (CoreHarness* side : {&old, &h})
      side->run(seconds(8));
    if (old.core.job_count() + h.core.job_count() == 2) ++on_both_sides;
    // The later one has most of them, or does without the run.
    if (h.core.job_count() == 1) CHECK(std::bitset<5>(split).count() <= 2);
  }
  // One that is cut off goes on with what it has left, if the run may shrink: decision 0013.
  CHECK((on_both_sides == 0) == (loss == WorkerLoss::fail));
}

TEST_CASE("restart: in the middle of a mass leave, all end, and nobody settles more than once a scheduler") {
  constexpr std::uint32_t kWorld = 60;
  CoreHarness old;
  old.auto_settle = false;
  const PeerId server = old.server();
  Memories past(old, "j", kWorld, 1, GENERATE(WorkerLoss::fail, WorkerLoss::shrink));
  std::uint32_t gone = 0;
  for (std::uint32_t rank = 0; rank < kWorld / 2; ++rank)
    old.say(past.worker_peers[rank], Leave{});
  SECTION("before anybody has settled") {}
  SECTION("when a half has left, and was let go") {
    gone = kWorld / 2;
    for (std::uint32_t rank = gone; rank < kWorld; ++rank)
      old.say(past.worker_peers[rank], Settled{old.last<Settle>(past.worker_peers[rank]).number});
    REQUIRE(old.got<Left>(past.worker_peers[0]).size() == 1);
  }
  past.learn(old, {server});
  CoreHarness h(2, later());
  h.auto_settle = false;
  past.servers[0].come_back(h);
  std::vector<PeerId> peers;
  for (std::uint32_t rank = gone; rank < kWorld; ++rank) {
    peers.push_back(past.workers[rank].come_back(h));
    if (rank < kWorld / 2) h.say(peers.back(), Leave{});
  }
  const std::size_t leavers = kWorld / 2 - gone;
  for (std::size_t i = leavers; i < peers.size(); ++i) {
    CHECK(h.got<Settle>(peers[i]).size() == (leavers > 0 ? 1 : 0));
    if (leavers > 0) h.say(peers[i], Settled{h.last<Settle>(peers[i]).number});
  }
  for (std::size_t i = 0; i < leavers; ++i)
    CHECK(h.got<Left>(peers[i]).size() == 1);
  for (std::size_t i = leavers; i < peers.size(); ++i)
    h.say(peers[i], Leave{});
  for (const PeerId peer : peers) {
    CHECK(h.got<Left>(peer).size() == 1);
    CHECK(h.got<Settle>(peer).size() <= 1);
    CHECK(h.got<JobFailed>(peer).empty());
  }
  CHECK(h.core.job_count() == 0);
}

TEST_CASE("restart: a rank that no worker has named is missed, because the servers name it") {
  CoreHarness old;
  const PeerId server = old.server();
  Memories past(old, "j", 3);
  past.learn(old, {server});
  CoreHarness h(2, later());
  const bool is_server_first = GENERATE(true, false);
  if (is_server_first) past.servers[0].come_back(h);
  const PeerId w0 = past.workers[0].come_back(h);
  past.workers[1].come_back(h);
  if (!is_server_first) past.servers[0].come_back(h);
  h.run(seconds(5));
  CHECK(h.got<JobFailed>(w0).empty());
  SECTION("and ends the job") {
    h.run(seconds(3));
    CHECK_THAT(h.last<JobFailed>(w0).error.message, Contains("rank 2") && Contains("not come back"));
  }
  SECTION("until it is there") {
    past.workers[2].come_back(h);
    h.run(seconds(3));
    CHECK(h.got<JobFailed>(w0).empty());
    h.say(w0, declare_one(9, "later", 1000));
    CHECK(h.got<Declared>(w0).size() == 1);
  }
}

TEST_CASE("restart: a loss of which only a worker knows is a contradiction") {
  CoreHarness old;
  const PeerId server = old.server();
  Memories past(old, "j", 3, 1, WorkerLoss::shrink);
  past.learn(old, {server});
  past.workers[0].start->workers = 2;
  past.workers[0].start->generation = Generation{2};
  CoreHarness h(2, later());
  past.servers[0].come_back(h);
  std::vector<PeerId> workers;
  for (const WorkerMemory& memory : past.workers)
    workers.push_back(memory.come_back(h));
  CHECK_THAT(h.last<JobFailed>(workers[1]).error.message, Contains("contradicts"));
}

}  // namespace bps

// Runs whose nodes come back to another scheduler, and not all of them, or not as they were.
#include <bitset>

#include "scheduler/attach_harness.h"

namespace bps {

using namespace testing;

namespace {

// A job, and servers that may be of several jobs, under a scheduler of which only what its nodes remember counts.
struct Memories {
  Memories(CoreHarness& h, const std::string& job, std::uint32_t world, std::size_t tensors = 1,
           WorkerLoss loss = WorkerLoss::fail) {
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      WorkerMemory& memory = workers.emplace_back();
      memory.hello = CoreHarness::hello(job, rank, world);
      memory.hello.worker_loss = loss;
      worker_peers.push_back(h.say_hello(memory.hello));
    }
    for (std::size_t i = 0; i < tensors; ++i) {
      for (std::uint32_t rank = 0; rank < world; ++rank) {
        workers[rank].asked[i + 1] = declare_one(i + 1, "t" + std::to_string(i), kElements);
        h.say(worker_peers[rank], workers[rank].asked[i + 1]);
      }
    }
  }

  void learn(CoreHarness& h, const std::vector<PeerId>& server_peers) {
    for (std::size_t i = 0; i < workers.size(); ++i)
      workers[i].learn(h, worker_peers[i]);
    for (const PeerId peer : server_peers) {
      ServerMemory& memory = servers.emplace_back();
      memory.hello = h.hello_of(peer);
      memory.learn(h, peer);
    }
  }

  std::vector<PeerId> worker_peers;
  std::vector<WorkerMemory> workers;
  std::vector<ServerMemory> servers;
};

}  // namespace

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
    CHECK(h.last<Shrunk>(s1).lost == Rank{2});
    CHECK(h.got<Shrunk>(w0).empty());
  }
}

}  // namespace bps

// Nodes that take their connection up again, with the scheduler that they lost or with another one.
#include "scheduler/testing/attach_harness.h"

namespace bps {

using namespace testing;

TEST_CASE("attach: a worker that comes back in time is not dead, and hears what it has missed") {
  CoreHarness h;
  Past past(h);
  h.lose(past.workers[1]);
  h.run(milliseconds(200));
  SECTION("nothing") {
    const PeerId back = past.memory[1].come_back(h);
    h.run(seconds(5));
    CHECK(h.got<JobFailed>(past.workers[0]).empty());
    CHECK(h.last<Welcome>(back).incarnation == past.memory[1].hello.incarnation);
    CHECK(h.got<Moved>(back).empty());
    h.say(back, Barrier{0});
    h.say(past.workers[0], Barrier{0});
    CHECK(h.got<BarrierDone>(back).size() == 1);
  }
  SECTION("that partitions have moved") {
    h.lose(past.servers[0]);
    h.run(milliseconds(50));
    const PeerId back = past.memory[1].come_back(h);
    h.run(seconds(1));
    REQUIRE(h.got<Moved>(past.workers[0]).size() == 1);
    REQUIRE(h.got<Moved>(back).size() == 1);
    CHECK(h.last<Moved>(back).moves == h.last<Moved>(past.workers[0]).moves);
    CHECK(h.last<Moved>(back).closed == h.last<Moved>(past.workers[0]).closed);
  }
  SECTION("that a tensor has failed, which it had not declared") {
    h.say(past.workers[0], declare_one(7, "late", 10));
    const TensorId late = h.last<Declared>(past.workers[0]).tensors[0].tensor;
    h.say(past.workers[0], declare_one(8, "late", 11));
    CHECK(h.last<TensorFailed>(past.workers[0]).tensor == late);
    const PeerId back = past.memory[1].come_back(h);
    REQUIRE(h.got<TensorFailed>(back).size() == 1);
    CHECK(h.last<TensorFailed>(back).tensor == late);
  }
  SECTION("that another one closes") {
    h.auto_settle = false;
    h.say(past.workers[0], Leave{});
    const PeerId back = past.memory[1].come_back(h);
    REQUIRE(h.got<Settle>(back).size() == 1);
    h.say(back, Settled{h.last<Settle>(back).number});
    CHECK(h.got<Left>(past.workers[0]).size() == 1);
  }
}

TEST_CASE("attach: too late is too late, and says what became of the run") {
  CoreHarness h;
  Past past(h);
  h.lose(past.workers[1]);
  h.run(seconds(1));
  const PeerId back = past.memory[1].come_back(h);
  CHECK_THAT(h.refusal(back).message, Contains("rank 1") && Contains("is gone"));
}

TEST_CASE("attach: a server that comes back is asked again what it has not acknowledged") {
  CoreHarness h;
  Past past(h);
  h.stop_acking(past.servers[0]);
  h.say(past.workers[0], declare_one(2, "later", kElements));
  const auto asked = h.got<DeclareSlices>(past.servers[0]).size();
  CHECK(asked == 2);
  h.lose(past.servers[0]);
  const PeerId back = past.server_memory[0].come_back(h);
  REQUIRE(h.got<DeclareSlices>(back).size() == 1);
  CHECK(h.last<DeclareSlices>(back).request == h.last<DeclareSlices>(past.servers[0]).request);
  CHECK(h.got<Declared>(past.workers[0]).size() == 2);
  h.run(seconds(5));
  CHECK(h.got<Moved>(past.workers[0]).empty());
}

TEST_CASE("attach: a restarted scheduler goes on with what its nodes say back") {
  CoreHarness old;
  Past past(old);
  CoreHarness h(2, later());
  const PeerId s0 = past.server_memory[0].come_back(h);
  const PeerId w0 = past.memory[0].come_back(h);
  // What it asks meanwhile is answered later.
  h.say(w0, declare_one(5, "later", 1000));
  h.say(w0, Barrier{0});
  const PeerId s1 = past.server_memory[1].come_back(h);
  CHECK(h.got<Declared>(w0).empty());
  const PeerId w1 = past.memory[1].come_back(h);
  CHECK(h.last<Welcome>(w1).term.number == 2);
  REQUIRE(h.got<Declared>(w0).size() == 1);
  CHECK(h.last<Declared>(w0).tensors[0].tensor == TensorId{1});
  CHECK(h.last<Declared>(w0).tensors[0].first_partition.value ==
        past.memory[0].tensors.at(TensorId{0}).placed.owners.size());
  h.say(w1, Barrier{0});
  CHECK(h.got<BarrierDone>(w0).size() == 1);
  for (const PeerId peer : {w0, w1}) {
    CHECK(h.got<Moved>(peer).empty());
    CHECK(h.got<JobStart>(peer).empty());
    CHECK(h.got<JobFailed>(peer).empty());
  }
  CHECK(h.got<JobEnded>(s0).empty());
  h.run(seconds(10));
  h.say(w0, Leave{});
  h.say(w1, Leave{});
  CHECK(h.last<JobEnded>(s1).error.code == ErrorCode::ok);
  CHECK(h.core.job_count() == 0);
}

TEST_CASE("attach: a run that comes back is as old as its workers say, and the log says that it came back") {
  CoreHarness old;
  Past past(old);
  past.memory[0].end.run_age_ms = 180'000;
  past.memory[1].end.run_age_ms = 182'500;  // was welcomed first
  CoreHarness h(2, later());
  for (const ServerMemory& server : past.server_memory)
    server.come_back(h);
  for (const WorkerMemory& worker : past.memory)
    worker.come_back(h);
  h.run(seconds(1));
  const PeerId admin = h.say_hello(HelloAdmin{});
  h.say(admin, AskCluster{1});
  REQUIRE(h.last<ClusterState>(admin).jobs.size() == 1);
  CHECK(h.last<ClusterState>(admin).jobs[0].age_ms == 183'500);
  const auto says = [&](const std::string& what) {
    return std::any_of(h.log.begin(), h.log.end(),
                       [&](const std::string& line) { return line.find(what) != std::string::npos; });
  };
  CHECK(says("job j came back, run "));
  CHECK(says("job j goes on: 2 workers and 2 servers have come back; it began 182.5 s ago"));
  CHECK_FALSE(says("created"));
}

TEST_CASE("attach: an age that cannot be changes nothing but the age") {
  CoreHarness old;
  Past past(old);
  past.memory[0].end.run_age_ms = ~std::uint64_t{0};
  CoreHarness h(2, later());
  for (const ServerMemory& server : past.server_memory)
    server.come_back(h);
  std::vector<PeerId> workers;
  for (const WorkerMemory& worker : past.memory)
    workers.push_back(worker.come_back(h));
  h.run(seconds(10));
  CHECK(h.core.job_count() == 1);
  CHECK(h.got<JobFailed>(workers[0]).empty());
}

TEST_CASE("attach: who does not come back to a restarted scheduler is dead") {
  CoreHarness old;
  Past past(old);
  CoreHarness h(2, later());
  const PeerId w0 = past.memory[0].come_back(h);
  SECTION("a worker: the run fails and names it") {
    past.server_memory[0].come_back(h);
    const PeerId s1 = past.server_memory[1].come_back(h);
    h.run(seconds(7));
    CHECK_THAT(h.last<JobFailed>(w0).error.message, Contains("rank 1") && Contains("not come back"));
    CHECK(h.last<JobEnded>(s1).error.code == ErrorCode::peer_lost);
  }
  SECTION("a server: its partitions move") {
    const PeerId w1 = past.memory[1].come_back(h);
    const PeerId s1 = past.server_memory[1].come_back(h);
    h.run(seconds(7));
    const auto& owners = past.memory[0].tensors.at(TensorId{0}).placed.owners;
    for (const PeerId worker : {w0, w1}) {
      REQUIRE(h.got<Moved>(worker).size() == 1);
      CHECK(h.last<Moved>(worker).moves.size() ==
            static_cast<std::size_t>(std::count(owners.begin(), owners.end(), LaneIndex{0})));
      CHECK(h.last<Moved>(worker).epoch.value == 2);
    }
    CHECK(h.last<DeclareSlices>(s1).moved);
  }
  SECTION("most of them: it fails, because they may follow another scheduler") {
    past.server_memory[0].come_back(h);
    h.run(seconds(7));
    CHECK_THAT(h.last<JobFailed>(w0).error.message, Contains("only 2 of its 4"));
  }
  CHECK(h.got<JobStart>(w0).empty());
}

TEST_CASE("attach: a move that was under way is brought to its end") {
  CoreHarness old;
  Past past(old);
  // Both workers' partitions at server 1 are declared at server 2, but nobody was told yet, or one was.
  const bool one_knows = GENERATE(false, true);
  if (!one_knows) old.stop_acking(past.servers[1]);
  old.lose(past.servers[0]);
  old.run(milliseconds(250));
  if (one_knows) old.lose(past.workers[1]);
  old.run(milliseconds(100));
  past.learn(old);
  CoreHarness h(2, later());
  const PeerId w0 = past.memory[0].come_back(h);
  const PeerId w1 = past.memory[1].come_back(h);
  const PeerId s1 = past.server_memory[1].come_back(h);
  h.run(seconds(7));
  CHECK(past.memory[0].end.closed.size() == (one_knows ? 1 : 0));
  for (const PeerId worker : {w0, w1}) {
    REQUIRE(h.got<Moved>(worker).size() == 1);
    CHECK(h.last<Moved>(worker).epoch.value == 3);
    CHECK(h.got<JobFailed>(worker).empty());
  }
  CHECK(h.last<Moved>(w0).moves.empty() == one_knows);
  CHECK_FALSE(h.last<Moved>(w1).moves.empty());
  // It has them: nothing but the epoch is new there.
  CHECK(h.last<DeclareSlices>(s1).tensors.empty());
}

TEST_CASE("attach: workers that had not started gather again, and start") {
  CoreHarness old;
  WorkerMemory memory[2];
  const PeerId peer = old.worker("j", 0, 2);
  memory[0].hello = CoreHarness::hello("j", 0, 2);
  memory[0].learn(old, peer);
  CoreHarness h(2, later());
  h.server();
  const PeerId w0 = memory[0].come_back(h);
  h.run(seconds(7));
  CHECK(h.got<JobStart>(w0).empty());
  const PeerId w1 = h.worker("j", 1, 2);
  CHECK(h.got<JobStart>(w0).size() == 1);
  CHECK(h.got<JobStart>(w1).size() == 1);
}

TEST_CASE("attach: a worker that has missed the start gets it") {
  CoreHarness old;
  Past past(old);
  past.memory[1].start.reset();
  past.memory[1].tensors.clear();
  CoreHarness h(2, later());
  past.memory[0].come_back(h);
  const PeerId w1 = past.memory[1].come_back(h);
  past.server_memory[0].come_back(h);
  past.server_memory[1].come_back(h);
  REQUIRE(h.got<JobStart>(w1).size() == 1);
  CHECK(h.last<JobStart>(w1).lanes == past.memory[0].start->lanes);
}

TEST_CASE("attach: servers drop runs that nobody comes back to") {
  CoreHarness old;
  Past past(old);
  CoreHarness h(2, later());
  const PeerId s0 = past.server_memory[0].come_back(h);
  h.run(seconds(5));
  CHECK(h.got<JobEnded>(s0).empty());
  h.run(seconds(2));
  CHECK(h.got<JobEnded>(s0).size() == 1);
}

TEST_CASE("attach: a run belongs to the job that its servers say") {
  CoreHarness old;
  Past past(old);
  CoreHarness h(2, later());
  WorkerMemory thief = past.memory[0];
  thief.hello.job = "other";
  const PeerId intruder = thief.come_back(h);
  CHECK(h.is_alive(intruder));
  past.server_memory[0].come_back(h);
  CHECK(h.last<JobFailed>(intruder).error.code == ErrorCode::unauthorised);
  past.server_memory[1].come_back(h);
  const PeerId w0 = past.memory[1].come_back(h);
  CHECK(h.is_alive(w0));
  CHECK(h.got<JobFailed>(w0).empty());
  // And afterwards.
  CHECK_FALSE(h.is_alive(thief.come_back(h)));
}

TEST_CASE("attach: the state of the scheduler before says whose run it is, and which numbers are taken") {
  CoreHarness old;
  Past past(old);
  CHECK(old.core.state().runs.at(past.memory[0].hello.job_run).job == "j");
  CHECK(old.core.state().last_server == ServerId{2});
  CoreOptions options = later();
  options.before = old.core.state();
  CoreHarness h(2, options);
  CHECK(h.core.state().runs == old.core.state().runs);
  WorkerMemory thief = past.memory[0];
  thief.hello.job = "other";
  CHECK_FALSE(h.is_alive(thief.come_back(h)));
  const PeerId s = h.server();
  CHECK(h.last<Welcome>(s).server == ServerId{3});
  h.run(seconds(7));
  CHECK(h.core.state().runs.empty());
}

TEST_CASE("attach: what a worker says back is not believed before it fits") {
  CoreHarness old;
  Past past(old);
  const auto spoil = GENERATE(range(0, 5));
  CAPTURE(spoil);
  WorkerMemory liar = past.memory[0];
  KnownTensor& tensor = liar.tensors.at(TensorId{0});
  switch (spoil) {
    case 0: liar.start->members[0].rank = Rank{4000}; break;
    case 1: liar.start->members[0].incarnation = Incarnation{0}; break;
    case 2: liar.start->members.push_back(Member(liar.start->members[0])); break;
    case 3: liar.end.barriers_arrived = UINT64_MAX; break;
    default: tensor.placed.owners.clear(); break;
  }
  SECTION("by the scheduler that it has left") {
    old.lose(past.workers[0]);
    const PeerId back = liar.come_back(old);
    CHECK_THAT(old.refusal(back).message, Contains("contradicts"));
  }
  SECTION("by another one") {
    CoreHarness h(2, later());
    const PeerId back = liar.come_back(h);
    const PeerId w1 = past.memory[1].come_back(h);
    past.server_memory[0].come_back(h);
    past.server_memory[1].come_back(h);
    h.run(seconds(8));
    CHECK((h.closed.count(back) == 1 || !h.got<JobFailed>(back).empty()));
    CHECK_FALSE(h.got<JobFailed>(w1).empty());
    CHECK(h.core.job_count() == 0);
  }
}

TEST_CASE("attach: a worker that is refused for its settings is still who it was") {
  CoreHarness h;
  const PeerId first = h.worker("j", 0, 2);
  WorkerMemory memory;
  memory.hello = CoreHarness::hello("j", 0, 3);
  memory.learn(h, first);
  CHECK_THAT(h.refusal(h.say_hello(memory.hello)).message, Contains("world-size"));
  h.say(first, Leave{});
  CHECK(h.got<Left>(first).size() == 1);
}

TEST_CASE("attach: who comes back while its run ends is told") {
  CoreHarness h;
  Past past(h);
  h.lose(past.workers[0]);
  h.lose(past.workers[1]);
  h.run(milliseconds(250));
  const PeerId back = h.say_hello(past.memory[1].hello);
  h.run(milliseconds(200));
  CHECK_THAT(h.refusal(back).message, Contains("rank 0") && Contains("is gone"));
}

TEST_CASE("attach: a report that does not end costs the connection") {
  CoreHarness old;
  Past past(old);
  CoreHarness h(2, later());
  const PeerId back = h.say_hello(past.memory[0].hello);
  h.run(seconds(4));
  CHECK_THAT(h.refusal(back).message, Contains("has not said back"));
}

TEST_CASE("attach: what a server was asked for a run that is over is not asked again") {
  CoreHarness h;
  Past past(h);
  h.stop_acking(past.servers[0]);
  h.say(past.workers[0], declare_one(2, "later", kElements));
  h.lose(past.servers[0]);
  h.say(past.workers[0], Leave{});
  h.say(past.workers[1], Leave{});
  CHECK(h.core.job_count() == 0);
  const PeerId back = past.server_memory[0].come_back(h);
  CHECK(h.got<DeclareSlices>(back).empty());
}

TEST_CASE("attach: a server of any number, or of somebody else's life, is let in or refused") {
  CoreHarness old;
  Past past(old);
  CoreHarness h(2, later());
  HelloServer hello = past.server_memory[0].hello;
  hello.server = ServerId{GENERATE(1u << 23, 1u << 25, 1u << 31)};
  CHECK(h.is_alive(h.server_again(hello)));
  hello.server = ServerId{0xffffffff};
  hello.incarnation = Incarnation{77};
  CHECK_FALSE(h.is_alive(h.server_again(hello)));
  past.memory[0].come_back(h);
  hello.server = ServerId{9};
  hello.incarnation = past.memory[0].hello.incarnation;
  CHECK_FALSE(h.is_alive(h.server_again(hello)));
}

TEST_CASE("attach: a server that has a worker's life fails the run that speaks of it") {
  CoreHarness old;
  Past past(old);
  CoreHarness h(2, later());
  for (LaneTarget& lane : past.memory[0].start->lanes)
    lane.incarnation = past.memory[0].hello.incarnation;
  const PeerId liar = past.memory[0].come_back(h);
  h.run(seconds(7));
  CHECK(h.got<JobFailed>(liar).size() == 1);
  CHECK(h.core.job_count() == 0);
  CHECK(h.core.server_count() == 0);
}

TEST_CASE("attach: a server that proves to be one has its number, whatever workers say") {
  CoreHarness old;
  Past past(old);
  CoreHarness h(2, later());
  WorkerMemory liar = past.memory[0];
  for (LaneTarget& lane : liar.start->lanes)
    lane.incarnation = Incarnation{lane.incarnation.value + 1};
  liar.come_back(h);
  CHECK(h.is_alive(past.server_memory[0].come_back(h)));
}

TEST_CASE("attach: of two schedulers the earlier one goes") {
  CoreHarness old;
  Past past(old);
  past.memory[0].hello.term.number = 7;
  past.server_memory[0].hello.term.number = 7;
  SECTION("it has nodes, and a server has met another one") {
    CoreHarness h(2, later());
    h.server();
    h.run(seconds(7));  // nodes of the one before do not come any more
    h.say_hello(past.server_memory[0].hello);
    REQUIRE(h.core.superseded());
    CHECK_THAT(h.core.superseded()->message, Contains("term 7"));
  }
  SECTION("it has nodes, and a worker says so: that is not enough, but the worker may look for the other") {
    CoreHarness h(2, later());
    h.server();
    const PeerId peer = h.say_hello(past.memory[0].hello);
    CHECK_FALSE(h.is_alive(peer));
    CHECK(h.got<Refused>(peer).empty());
    CHECK(h.got<Welcome>(peer).empty());
    CHECK_FALSE(h.core.superseded());
  }
  SECTION("no scheduler has such a term") {
    past.memory[0].hello.term.number = ~std::uint64_t{0};
    CoreHarness h(2, later());
    CHECK_THAT(h.refusal(h.say_hello(past.memory[0].hello)).message, Contains("no scheduler has this term"));
  }
  SECTION("it has none: its clock was behind") {
    CoreHarness h(2, later());
    const PeerId back = past.memory[0].come_back(h);
    CHECK(h.last<Welcome>(back).term.number == 8);
    CHECK_FALSE(h.core.superseded());
  }
}

}  // namespace bps

// Queries of administrators and waiting workers, and servers that are told to go.
#include <algorithm>

#include "proto/wire/wait_text.h"
#include "scheduler/testing/core_harness.h"

namespace bps {
namespace {

using namespace testing;
using namespace std::chrono_literals;

PeerId admin(CoreHarness& h) {
  const PeerId peer = h.say_hello(HelloAdmin{});
  REQUIRE(h.got<Welcome>(peer).size() == 1);
  return peer;
}

AskWaits about(std::uint64_t request, Subject subject = Subject::everything, std::string tensor = {}) {
  return {request, "", subject, std::move(tensor), 0, 0};
}

OpenRound open_round(std::vector<Rank> missing, std::uint64_t age_ms = 10'400) {
  const auto absent = static_cast<std::uint32_t>(missing.size());
  return {TensorId{0}, Round{812}, age_ms, RoundStage::push, 1, 3, absent, std::move(missing)};
}

// What the server says to all queries that it has.
void answer(CoreHarness& h, PeerId server, const std::vector<OpenRound>& rounds) {
  const auto asked = h.got<AskOpenRounds>(server);
  REQUIRE_FALSE(asked.empty());
  for (const AskOpenRounds& each : asked)
    h.say(server, OpenRounds{each.request, rounds, 0});
}

Waits last_waits(CoreHarness& h, PeerId peer) {
  Waits waits = h.last<Waits>(peer);
  CHECK(waits.error.code == ErrorCode::ok);
  return waits;
}

TEST_CASE("queries: a waiting worker hears who has not pushed, with host, age and state") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = h.running_job("job", 3);
  h.say(workers[0], declare_one(1, "layer1.weight", 100));
  h.run(700ms);
  h.hang(workers[2]);
  h.run(900ms);
  h.say(workers[0], about(30, Subject::tensor, "layer1.weight"));
  const auto asked = h.last<AskOpenRounds>(server);
  CHECK(asked.tensor == TensorId{0});
  answer(h, server, {open_round({Rank{1}, Rank{2}})});
  const Waits waits = last_waits(h, workers[0]);
  CHECK(waits.request == 30);
  REQUIRE(waits.waits.size() == 1);
  const Wait& wait = waits.waits[0];
  CHECK(wait.job == "job");
  CHECK(wait.age_ms == 10'400);
  CHECK(wait.missing[0].state == PartyState::alive);
  CHECK(wait.missing[0].silent_ms <= 1000);
  CHECK(wait.missing[1].silent_ms > 1000);
  CHECK_THAT(to_string(wait),
             Contains("round 812 of layer1.weight: 1 of 3 pushed, missing rank 1 (host gpu-1, "
                      "last seen 0.") &&
                 Contains("and rank 2 (host gpu-2, last seen "));
}

TEST_CASE("queries: a worker asks about its own job only, whatever it says") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto first = h.running_job("first", 1);
  const auto second = h.running_job("second", 1);
  h.say(first[0], declare_one(1, "t", 100));
  AskWaits query = about(30, Subject::tensor, "t");
  query.job = "first";
  h.say(second[0], query);
  CHECK(h.last<Waits>(second[0]).error.code == ErrorCode::invalid_argument);
  CHECK(h.got<AskOpenRounds>(server).empty());
}

TEST_CASE("queries: who is at a barrier waits for those who are not") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = h.running_job("job", 3);
  h.say(workers[1], Barrier{0});
  h.run(2s);
  h.say(workers[1], about(30, Subject::barrier));
  answer(h, server, {open_round({Rank{0}})});
  const Waits waits = last_waits(h, workers[1]);
  REQUIRE(waits.waits.size() == 1);
  CHECK(waits.waits[0].kind == WaitKind::barrier);
  CHECK(waits.waits[0].age_ms >= 1900);
  CHECK_THAT(to_string(waits.waits[0]), Contains("barrier 0: 1 of 3 arrived, missing rank 0 (host gpu-0") &&
                                            Contains("and rank 2 (host gpu-2"));
  h.say(workers[0], Barrier{0});
  h.say(workers[2], Barrier{0});
  h.say(workers[1], about(31, Subject::barrier));
  answer(h, server, {});
  CHECK(last_waits(h, workers[1]).waits.empty());
}

TEST_CASE("queries: a declaration waits for servers that have not confirmed it") {
  CoreHarness h;
  const PeerId server = h.server("cpu-1");
  const auto workers = h.running_job("job", 2);
  h.stop_acking(server);
  h.say(workers[0], declare_one(1, "t", 100));
  h.say(workers[0], declare_one(2, "u", 100));
  h.run(1s);
  h.say(workers[0], about(30, Subject::declaration, "t"));
  const Waits waits = last_waits(h, workers[0]);
  REQUIRE(waits.waits.size() == 1);
  CHECK_THAT(to_string(waits.waits[0]),
             Contains("the declaration of t: 0 of 1 servers confirmed it, missing server 1 (host cpu-1"));
  CHECK(waits.waits[0].age_ms >= 900);
}

TEST_CASE("queries: a server that does not answer is named, and its answer may come too late") {
  CoreHarness h;
  const PeerId server = h.server("cpu-1");
  const PeerId other = h.server("cpu-2");
  const auto workers = h.running_job("job", 3);
  h.say(workers[0], declare_one(1, "layer1.weight", 100));
  AskWaits query = about(30);
  query.patience_ms = 200;
  h.say(workers[0], query);
  answer(h, server, {open_round({Rank{1}})});
  h.run(300ms);
  const Waits waits = last_waits(h, workers[0]);
  CHECK(waits.waits.size() == 1);
  REQUIRE(waits.silent.size() == 1);
  CHECK_THAT(to_string(waits.silent[0]), Contains("server 2 (host cpu-2"));
  answer(h, other, {});
  h.run(2s);
  answer(h, other, {});
  h.say(other, OpenRounds{999, {}, 0});  // another scheduler may have asked that
  CHECK(h.is_alive(other));
}

TEST_CASE("queries: why a rank does not come: what it has not declared, and what it waits for itself") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = h.running_job("job", 2);
  h.say(workers[0], declare_one(1, "b", 100));  // tensor 0
  for (const PeerId worker : workers)
    h.say(worker, declare_one(2, "c", 100));    // tensor 1
  h.say(workers[1], declare_one(3, "a", 100));  // tensor 2
  const auto round = [](std::uint32_t tensor, std::uint64_t age_ms, Rank missing) {
    return OpenRound{TensorId{tensor}, Round{7}, age_ms, RoundStage::push, 1, 2, 1, {missing}};
  };
  const std::vector<OpenRound> open{round(0, 12'000, Rank{1}), round(2, 11'000, Rank{0})};
  SECTION("to a rank, about its tensor") {
    h.say(workers[1], about(30, Subject::tensor, "a"));
    const auto asked = h.got<AskOpenRounds>(server);
    REQUIRE(asked.size() == 2);
    CHECK_FALSE(asked[0].tensor);
    CHECK(asked[1].tensor == TensorId{2});
    h.say(server, OpenRounds{asked[0].request, open, 0});
    h.say(server, OpenRounds{asked[1].request, {open[1]}, 0});
    const Waits waits = last_waits(h, workers[1]);
    REQUIRE(waits.waits.size() == 1);
    CHECK(to_string(waits.waits[0]) ==
          "round 7 of a: 1 of 2 pushed, missing rank 0 (host gpu-0, last seen 0.0 s ago; it has not declared "
          "it, and waits for round 7 of b itself); ranks have waited for each other for 11.0 s");
  }
  SECTION("to an administrator, about all") {
    const PeerId peer = admin(h);
    h.say(peer, about(30));
    answer(h, server, open);
    const Waits waits = last_waits(h, peer);
    REQUIRE(waits.waits.size() == 2);
    CHECK(waits.waits[0].tensor == "b");
    CHECK(waits.waits[0].missing[0].undeclared);
    CHECK(waits.waits[0].missing[0].waits_for == "a");
    CHECK(waits.waits[1].cycle_ms == 11'000);
    CHECK(h.is_alive(workers[0]));
  }
  SECTION("a rank that is only slow waits for nothing, and has declared what it has") {
    h.say(workers[0], about(30, Subject::tensor, "c"));
    const auto asked = h.got<AskOpenRounds>(server);
    h.say(server, OpenRounds{asked[0].request, {round(1, 12'000, Rank{1})}, 0});
    h.say(server, OpenRounds{asked[1].request, {round(1, 12'000, Rank{1})}, 0});
    const Waits waits = last_waits(h, workers[0]);
    REQUIRE(waits.waits.size() == 1);
    CHECK_FALSE(waits.waits[0].missing[0].undeclared);
    CHECK(waits.waits[0].missing[0].waits_for.empty());
    CHECK(waits.waits[0].cycle_ms == 0);
  }
}

TEST_CASE("queries: a rank at a barrier and one that waits for its tensor wait for each other") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = h.running_job_with("job", 2, "a", 100);
  h.run(1s);
  h.say(workers[1], Barrier{0});
  h.run(11s);
  const std::vector<OpenRound> open{{TensorId{0}, Round{7}, 12'000, RoundStage::push, 1, 2, 1, {Rank{1}}}};
  SECTION("to the one at the barrier") {
    h.say(workers[1], about(30, Subject::barrier));
    answer(h, server, open);
    const Waits waits = last_waits(h, workers[1]);
    REQUIRE(waits.waits.size() == 1);
    CHECK(waits.waits[0].cycle_ms >= 10'800);
    CHECK(waits.waits[0].cycle_ms <= 11'000);
    CHECK_THAT(to_string(waits.waits[0]),
               Contains("barrier 0: 1 of 2 arrived, missing rank 0 (host gpu-0") &&
                   Contains("; it waits for round 7 of a itself); ranks have waited for each other for 1"));
  }
  SECTION("to the other one, with the barrier") {
    h.say(workers[0], about(30, Subject::tensor, "a"));
    answer(h, server, open);
    const Waits waits = last_waits(h, workers[0]);
    REQUIRE(waits.waits.size() == 2);
    CHECK(waits.waits[0].kind == WaitKind::round);
    CHECK(waits.waits[0].cycle_ms >= 10'800);
    CHECK(waits.waits[1].kind == WaitKind::barrier);
  }
  SECTION("unless somebody has just arrived, or the tensor has what it needs") {
    h.say(workers[1], about(30, Subject::barrier));
    SECTION("arrived") {
      h.say(workers[1], Barrier{1});
      answer(h, server, open);
    }
    SECTION("pushed") { answer(h, server, {}); }
    CHECK(last_waits(h, workers[1]).waits.at(0).cycle_ms == 0);
  }
}

TEST_CASE("queries: an administrator hears of all jobs, gathering ones too") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = h.running_job("job", 3);
  h.say(workers[0], declare_one(1, "layer1.weight", 100));
  h.worker("other", 1, 3);
  const PeerId peer = admin(h);
  h.run(1s);
  h.say(peer, about(30));
  answer(h, server, {open_round({Rank{1}}, 400)});
  const Waits waits = last_waits(h, peer);
  REQUIRE(waits.waits.size() == 2);
  CHECK(waits.waits[0].job == "other");
  CHECK(to_string(waits.waits[0]) ==
        "the workers of the job: 1 of 3 joined, missing rank 0 (never joined) and rank 2 (never joined)");
  CHECK(waits.waits[1].kind == WaitKind::round);

  AskWaits one = about(31);
  one.job = "job";
  one.older_than_ms = 500;
  h.say(peer, one);
  answer(h, server, {open_round({Rank{1}}, 400)});
  CHECK(last_waits(h, peer).waits.empty());
  one.job = "none";
  h.say(peer, one);
  CHECK(h.last<Waits>(peer).error.message == "there is no job 'none'");
  h.say(peer, about(32, Subject::tensor, "none"));
  CHECK(h.last<Waits>(peer).error.message == "no job has a tensor 'none'");
}

TEST_CASE("queries: an administrator hears what lies at a server that does not answer") {
  CoreHarness h;
  const PeerId server = h.server("cpu-1");
  const auto workers = h.running_job("job", 1);
  h.say(workers[0], declare_one(1, "layer1.weight", 100));
  h.worker("other", 1, 3);  // has nothing there
  const PeerId peer = admin(h);
  const bool hangs = GENERATE(false, true);
  if (hangs) h.hang(server);
  h.say(peer, about(30));
  h.run(kMaxQueryPatience + 100ms);
  const Waits waits = last_waits(h, peer);
  REQUIRE(waits.silent.size() == 1);
  const auto found = std::find_if(waits.waits.begin(), waits.waits.end(),
                                  [](const Wait& wait) { return wait.kind == WaitKind::server; });
  REQUIRE((found != waits.waits.end()) == hangs);
  if (!hangs) return;  // it is only slow
  CHECK(found->job == "job");
  CHECK_THAT(to_string(*found), Contains("1 partition at server 1 (host cpu-1, last seen ") &&
                                    Contains("s ago), which does not answer"));
  CHECK(std::count_if(waits.waits.begin(), waits.waits.end(),
                      [](const Wait& wait) { return wait.kind == WaitKind::server; }) == 1);
}

TEST_CASE("queries: servers that have gone are remembered, some of them and for an hour") {
  CoreHarness h;
  const PeerId peer = admin(h);
  const auto gone = [&] {
    h.say(peer, AskCluster{7});
    return h.last<ClusterState>(peer).gone_servers;
  };
  const PeerId first = h.server("cpu-1");
  const PeerId second = h.server("cpu-2");
  CHECK(gone().empty());
  h.lose(first);
  h.run(2s);
  h.say(second, Leave{});
  h.lose(second);
  auto now = gone();
  REQUIRE(now.size() == 2);
  CHECK(now[0].server == ServerId{2});
  CHECK(now[0].how == "it has left");
  CHECK(now[1].host == "cpu-1");
  CHECK(now[1].how == "connection lost");
  CHECK(now[1].gone_ms >= 1600);
  CHECK(now[1].gone_ms <= 2000);
  for (int i = 0; i < 10; ++i) {
    h.lose(h.server("cpu-3"));
    h.run(1s);
  }
  now = gone();
  CHECK(now.size() == kMaxGoneServersListed);
  CHECK(now.back().host == "cpu-3");
  h.run(3601s);
  CHECK(gone().empty());
}

TEST_CASE("queries: the job, the server and the asker may go before the answer") {
  CoreHarness h;
  const PeerId server = h.server("cpu-1");
  h.server("cpu-2");
  const auto workers = h.running_job("job", 2);
  h.say(workers[0], declare_one(1, "t", 100));
  const PeerId first = admin(h);
  const PeerId second = admin(h);
  h.say(first, about(30));
  h.say(second, about(31));
  SECTION("the asker") {
    h.lose(second);
    answer(h, server, {});
    h.run(2s);
    CHECK(h.got<Waits>(first).size() == 1);
  }
  SECTION("the server") {
    h.lose(server);
    h.run(kMaxQueryPatience);
    CHECK(h.last<Waits>(first).silent.size() == 2);
  }
  SECTION("the job") {
    h.lose(workers[0]);
    h.run(1s);
    answer(h, server, {open_round({Rank{1}})});
    h.run(1s);
    CHECK(last_waits(h, first).waits.empty());
  }
}

TEST_CASE("queries: who comes back on another connection is answered on neither") {
  CoreHarness h;
  const PeerId server = h.server();
  HelloWorker hello = CoreHarness::hello("job", 0, 1);
  const PeerId worker = h.say_hello(hello);
  h.say(worker, declare_one(1, "t", 100));
  const auto welcome = h.last<Welcome>(worker);
  h.say(worker, about(30, Subject::tensor, "t"));
  hello.term = welcome.term;
  hello.incarnation = welcome.incarnation;
  hello.job_run = welcome.job_run;
  const PeerId back = h.say_hello(hello);
  REQUIRE(h.got<Welcome>(back).size() == 1);
  CHECK_FALSE(h.is_alive(worker));
  answer(h, server, {open_round({Rank{0}})});
  h.run(2s);
  CHECK(h.got<Waits>(worker).empty());
  CHECK(h.got<Waits>(back).empty());
}

TEST_CASE("queries: what there is") {
  CoreHarness h;
  h.server("cpu-1", 2);
  h.server("cpu-2");
  const auto workers = h.running_job("job", 3);
  h.say(workers[0], declare_one(1, "t", 100'000));
  h.say(workers[2], Leave{});
  h.run(5s);
  const PeerId peer = admin(h);
  h.say(peer, AskCluster{7});
  const auto state = h.last<ClusterState>(peer);
  CHECK(state.request == 7);
  CHECK(state.term == h.core.term());
  CHECK(state.uptime_ms >= 4900);
  REQUIRE(state.servers.size() == 2);
  CHECK(state.servers[0].host == "cpu-1");
  CHECK(state.servers[0].shards == 2);
  CHECK(state.servers[0].jobs == 1);
  CHECK(state.servers[0].placed + state.servers[1].placed == 400'000);
  REQUIRE(state.jobs.size() == 1);
  const JobState& job = state.jobs[0];
  CHECK(job.job == "job");
  CHECK(job.phase == "running");
  CHECK(job.world_size == 3);
  CHECK(job.joined == 3);
  CHECK(job.left == 1);
  CHECK(job.servers == 2);
  CHECK(job.tensors == 1);
  CHECK(job.bytes == 400'000);
  REQUIRE(job.absentees.size() == 1);
  CHECK(job.absentees[0].state == PartyState::left);
}

TEST_CASE("queries: administrators are counted, and go when they fall silent") {
  CoreOptions options;
  options.max_admins = 2;
  CoreHarness h(1, options);
  const PeerId first = admin(h);
  const PeerId second = admin(h);
  const PeerId third = h.say_hello(HelloAdmin{});
  CHECK_THAT(h.refusal(third).message, Contains("2 administrators"));
  h.hang(first);
  h.run(4s);
  CHECK_FALSE(h.is_alive(first));
  CHECK(h.is_alive(second));
  admin(h);
  h.say(second, Declare{});
  CHECK_THAT(h.refusal(second).message, Contains("Declare from an administrator"));
  CHECK(h.core.node_count() == 1);
}

TEST_CASE("drain: the server is told, its partitions move, and the administrator hears of it") {
  CoreHarness h;
  const PeerId server = h.server("cpu-1");
  h.server("cpu-2");
  const auto workers = h.running_job("job", 2);
  h.say(workers[0], declare_one(1, "t", 1'000'000));
  const PeerId peer = admin(h);
  h.say(peer, Drain{9, ServerId{1}});
  const auto begun = h.last<Drained>(peer);
  CHECK_FALSE(begun.over);
  CHECK(begun.error.code == ErrorCode::ok);
  CHECK(begun.jobs == 1);
  CHECK(begun.stays_for.empty());
  CHECK(h.last<Drain>(server).server == ServerId{1});
  h.say(server, Leave{});
  CHECK(h.got<Moved>(workers[0]).size() == 1);
  CHECK(h.got<Left>(server).size() == 1);
  h.lose(server);
  const auto over = h.last<Drained>(peer);
  CHECK(over.request == 9);
  CHECK(over.over);
  CHECK(over.error.code == ErrorCode::ok);
  CHECK(over.partitions == h.last<Moved>(workers[0]).moves.size());
  CHECK(over.partitions > 0);
}

TEST_CASE("drain: a server that was not reached is told again when it is back") {
  CoreHarness h;
  const PeerId server = h.server("cpu-1");
  h.server("cpu-2");
  HelloServer hello = h.hello_of(server);
  const auto welcome = h.last<Welcome>(server);
  hello.term = welcome.term;
  hello.incarnation = welcome.incarnation;
  hello.server = welcome.server;
  const PeerId peer = admin(h);
  h.say(peer, Drain{9, ServerId{1}});
  h.lose(server);
  const PeerId back = h.server_again(hello);
  CHECK(h.got<Drain>(back).empty());
  h.say(back, Attached{});
  REQUIRE(h.got<Drain>(back).size() == 1);
  CHECK(h.last<Drain>(back).server == ServerId{1});
  h.say(back, Leave{});
  h.lose(back);
  CHECK(h.last<Drained>(peer).over);
}

TEST_CASE("drain: a job that fails meanwhile is no success") {
  CoreHarness h;
  const PeerId server = h.server("cpu-1");
  const PeerId silent = h.server("cpu-2");
  const auto workers = h.running_job("job", 2);
  h.say(workers[0], declare_one(1, "t", 1'000'000));
  h.stop_acking(silent);
  const PeerId peer = admin(h);
  h.say(peer, Drain{9, ServerId{1}});
  const bool has_heard = GENERATE(false, true);
  if (has_heard) h.say(server, Leave{});
  h.kill(workers[0]);
  REQUIRE(h.got<JobFailed>(workers[1]).size() == 1);
  if (!has_heard) h.say(server, Leave{});
  CHECK(h.got<Left>(server).size() == 1);
  h.lose(server);
  const Drained over = h.last<Drained>(peer);
  CHECK(over.over);
  CHECK(over.error.code == ErrorCode::peer_lost);
  CHECK_THAT(over.error.message, Contains("has gone") && Contains("meanwhile job job failed: rank 0"));
  h.say(peer, AskCluster{6});
  REQUIRE(h.last<ClusterState>(peer).gone_servers.size() == 1);
  CHECK_THAT(h.last<ClusterState>(peer).gone_servers[0].how, Contains("meanwhile job job failed: rank 0"));
}

TEST_CASE("drain: what cannot be drained is said, and why") {
  CoreHarness h;
  const PeerId peer = admin(h);
  h.say(peer, Drain{1, ServerId{7}});
  CHECK(h.last<Drained>(peer).error.message == "there is no server 7");
  h.server("cpu-1");
  h.say(peer, Drain{2, ServerId{1}});
  CHECK_THAT(h.last<Drained>(peer).error.message, Contains("is the last one"));
  CHECK(h.last<Drained>(peer).error.code == ErrorCode::invalid_argument);
}

TEST_CASE("drain: jobs that keep the server are named; a death on the way is told") {
  CoreHarness h;
  const PeerId server = h.server("cpu-1");
  h.server("cpu-2");
  HelloWorker careless = CoreHarness::hello("careless", 0, 1);
  careless.retain = false;
  const PeerId worker = h.say_hello(careless);
  h.say(worker, declare_one(1, "t", 1'000'000));
  const PeerId peer = admin(h);
  h.say(peer, Drain{9, ServerId{1}});
  CHECK(h.last<Drained>(peer).stays_for == std::vector<std::string>{"careless"});
  h.say(server, Leave{});
  h.lose(server);
  h.run(1s);
  CHECK(h.last<Drained>(peer).over);
  CHECK_THAT(h.last<Drained>(peer).error.message, Contains("is gone: connection lost"));
}

}  // namespace
}  // namespace bps

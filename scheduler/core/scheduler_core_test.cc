// Joining, leaving, and the peers of the scheduler.
#include "scheduler/core/scheduler_core.h"

#include "scheduler/testing/core_harness.h"

namespace bps {

using namespace testing;

TEST_CASE("core: a job starts when all workers and a server are there") {
  CoreHarness h;
  const PeerId server = h.server("cpu-1", 2);
  const PeerId w1 = h.worker("resnet50", 1, 2);
  CHECK(h.got<OpenJob>(server).empty());
  const PeerId w0 = h.worker("resnet50", 0, 2);

  const Welcome welcome = h.last<Welcome>(w0);
  CHECK(welcome.term == h.core.term());
  CHECK(welcome.job_run.value != 0);
  CHECK(welcome.job_run == h.last<Welcome>(w1).job_run);
  CHECK(welcome.incarnation != h.last<Welcome>(w1).incarnation);

  const OpenJob open = h.last<OpenJob>(server);
  CHECK(open.job == "resnet50");
  CHECK(open.job_run == welcome.job_run);
  const JobStart start = h.last<JobStart>(w1);
  CHECK(start.lanes == h.last<JobStart>(w0).lanes);
  // Of the others a worker needs only how many they are.
  CHECK(start.workers == 2);
  CHECK(start.host_workers == 1);
  CHECK_FALSE(start.groups);
  CHECK(start.members == std::vector{open.members.at(1)});
  REQUIRE(open.members.size() == 2);
  CHECK(open.members[1].rank == Rank{1});
  CHECK(open.members[1].host == "gpu-1");
  CHECK(open.members[0].incarnation == welcome.incarnation);
  CHECK(open.members[0].weight == 1);
  CHECK(open.members[1].leader == Rank{1});
  REQUIRE(start.lanes.size() == 2);
  CHECK(start.lanes[1].shard == 1);
  CHECK(start.lanes[1].server == h.last<Welcome>(server).server);
  CHECK(start.lanes[1].incarnation == h.last<Welcome>(server).incarnation);
  CHECK(start.partition_bytes == kDefaultPartitionBytes);
}

TEST_CASE("core: servers may come last, and a job waits for their acknowledgements") {
  CoreHarness h;
  const PeerId w0 = h.worker("a", 0, 1);
  h.run(seconds(5));
  CHECK(h.got<JobStart>(w0).empty());
  h.auto_ack = false;
  const PeerId server = h.server();
  CHECK(h.got<JobStart>(w0).empty());
  h.say(server, Ack{h.last<OpenJob>(server).request, {}});
  CHECK(h.got<JobStart>(w0).size() == 1);
}

TEST_CASE("core: lanes alternate between servers of different sizes") {
  CoreHarness h;
  h.server("a", 3);
  h.server("b", 1);
  const auto workers = h.running_job("j", 1);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> lanes;
  for (const auto& lane : h.last<JobStart>(workers[0]).lanes) {
    lanes.emplace_back(lane.server.value, lane.shard);
    CHECK(lane.host == (lane.server.value == 1 ? "a" : "b"));
  }
  CHECK(lanes == std::vector<std::pair<std::uint32_t, std::uint32_t>>{{1, 0}, {2, 0}, {1, 1}, {1, 2}});
}

TEST_CASE("core: workers hear which servers take lanes over RDMA") {
  CoreHarness h;
  h.server("a");
  HelloServer hello;
  hello.host = "b";
  hello.data = {"10.1.0.9", 4711};
  hello.shards = 1;
  hello.rdma = true;
  h.server_again(hello);
  const auto lanes = h.last<JobStart>(h.running_job("j", 1)[0]).lanes;
  REQUIRE(lanes.size() == 2);
  CHECK_FALSE(lanes[0].rdma);
  CHECK(lanes[1].rdma);
}

TEST_CASE("core: a server that refuses the job fails it with its words") {
  CoreHarness h;
  const PeerId good = h.server("a");
  h.auto_ack = false;
  const PeerId bad = h.server("b");
  const PeerId w0 = h.worker("j", 0, 1);
  h.say(bad,
        Ack{h.last<OpenJob>(bad).request, make_error(ErrorCode::out_of_memory, "too many jobs", "wait")});
  const Error error = h.last<JobFailed>(w0).error;
  CHECK(error.code == ErrorCode::out_of_memory);
  CHECK_THAT(error.message, Contains("server 2 (host b") && Contains("too many jobs"));
  CHECK(h.got<JobEnded>(good).size() == 1);
  CHECK(h.got<JobEnded>(bad).empty());
  CHECK(h.core.job_count() == 0);
}

TEST_CASE("core: all workers of a job are of one version") {
  CoreHarness h;
  h.server();
  auto hello = CoreHarness::hello("j", 0, 2);
  const auto before = static_cast<std::uint16_t>(kProtocolVersion - 1);
  hello.capabilities = {before, before, {}};
  const PeerId first = h.say_hello(hello);
  const Refused refused = h.refusal(h.worker("j", 1, 2));
  CHECK(refused.code == ErrorCode::configuration);
  CHECK(refused.message == "protocol version of job j differs: rank 0 (host gpu-0) has " +
                               std::to_string(before) + ", rank 1 (host gpu-1) has " +
                               std::to_string(kProtocolVersion));
  CHECK_THAT(refused.advice, Contains("same bps version for all ranks"));
  hello = CoreHarness::hello("j", 1, 2);
  hello.capabilities = {before, before, {}};
  h.say_hello(hello);
  CHECK(h.got<JobStart>(first).size() == 1);
}

TEST_CASE("core: workers must agree on the settings of a job") {
  CoreHarness h;
  h.worker("j", 0, 4);
  auto hello = CoreHarness::hello("j", 1, 8);
  Refused refused = h.refusal(h.say_hello(hello));
  CHECK(refused.code == ErrorCode::configuration);
  CHECK(refused.message ==
        "world-size of job j differs: rank 0 (host gpu-0) has 4, rank 1 (host gpu-1) has 8");
  CHECK_FALSE(refused.advice.empty());

  hello = CoreHarness::hello("j", 1, 4);
  hello.partition_bytes = 65536;
  CHECK_THAT(h.refusal(h.say_hello(hello)).message,
             Contains("partition-bytes") && Contains("none") && Contains("65536"));
  hello = CoreHarness::hello("j", 1, 4);
  hello.mode = Mode::async;
  CHECK_THAT(h.refusal(h.say_hello(hello)).message,
             Contains("gpu-0) has sync, rank 1 (host gpu-1) has async"));
  hello = CoreHarness::hello("j", 1, 4);
  hello.staleness = 3;
  CHECK_THAT(h.refusal(h.say_hello(hello)).message, Contains("has unbounded") && Contains("has 3"));

  hello = CoreHarness::hello("j", 1, 4);
  hello.partition_bytes = 65540;
  CHECK_THAT(h.refusal(h.say_hello(hello)).message, Contains("multiple of 8"));
  CHECK(h.got<Welcome>(h.worker("j", 1, 4)).size() == 1);
}

TEST_CASE("core: a rank outside of the world is refused") {
  CoreHarness h;
  const Refused refused = h.refusal(h.worker("j", 4, 4));
  CHECK(refused.code == ErrorCode::configuration);
  CHECK_THAT(refused.message, Contains("rank 4") && Contains("4 workers"));
}

TEST_CASE("core: a duplicate rank is refused, naming the holder") {
  CoreHarness h;
  const PeerId holder = h.worker("j", 0, 2);
  auto hello = CoreHarness::hello("j", 0, 2);
  hello.host = "gpu-9";
  const Refused refused = h.refusal(h.say_hello(hello));
  CHECK(refused.code == ErrorCode::configuration);
  CHECK(refused.message == "rank 0 of job j is taken by rank 0 (host gpu-0, 10.0.0.1:5000)");
  CHECK(h.is_alive(holder));
}

TEST_CASE("core: while a job gathers, a newcomer waits for a suspected holder to be dead") {
  CoreHarness h;
  const PeerId old = h.worker("j", 0, 2);
  const PeerId other = h.worker("j", 1, 2);
  h.lose(old);
  const PeerId newcomer = h.worker("j", 0, 2);
  CHECK(h.got<Welcome>(newcomer).empty());
  h.run(milliseconds(250));
  CHECK(h.got<Welcome>(newcomer).empty());
  h.run(milliseconds(100));
  CHECK(h.got<Welcome>(newcomer).size() == 1);
  CHECK(h.got<JobFailed>(other).empty());
  h.server();
  CHECK(h.got<JobStart>(newcomer).size() == 1);
  CHECK(h.got<JobStart>(other).size() == 1);
}

TEST_CASE("core: after the start, a newcomer for a suspected rank becomes the first worker of a new run") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = h.running_job("j", 2);
  const JobRun first = h.last<Welcome>(workers[0]).job_run;
  h.lose(workers[1]);
  const PeerId newcomer = h.worker("j", 1, 2);
  CHECK(h.got<Welcome>(newcomer).empty());
  h.run(milliseconds(400));
  CHECK(h.got<JobFailed>(workers[0]).size() == 1);
  CHECK(h.last<JobEnded>(server).job_run == first);
  const JobRun second = h.last<Welcome>(newcomer).job_run;
  CHECK(second != first);
  CHECK(h.got<JobStart>(newcomer).empty());
  h.worker("j", 0, 2);
  CHECK(h.last<JobStart>(newcomer).job_run == second);
}

TEST_CASE("core: the next run of a name waits until the one that is closing has ended") {
  CoreHarness h;
  h.server();
  const auto workers = h.running_job("j", 2);
  h.say(workers[0], Leave{});
  const PeerId next = h.worker("j", 0, 1);  // with another world size
  CHECK(h.got<Welcome>(next).empty());
  // A live rank is still a duplicate.
  CHECK_THAT(h.refusal(h.worker("j", 1, 2)).message, Contains("is taken by"));
  h.say(workers[1], Leave{});
  CHECK(h.got<JobStart>(next).size() == 1);
  CHECK(h.got<JobFailed>(workers[1]).empty());
}

TEST_CASE("core: who waits in vain is told so, and may give up before") {
  CoreHarness h;
  h.server();
  const auto workers = h.running_job("j", 2);
  h.say(workers[0], Leave{});
  auto hello = CoreHarness::hello("j", 0, 2);
  hello.join_timeout_ms = 5000;
  const PeerId waits = h.say_hello(hello);
  const PeerId gives_up = h.worker("j", 0, 2);
  h.say(gives_up, Leave{});
  CHECK(h.got<Left>(gives_up).size() == 1);
  h.run(milliseconds(4900));
  CHECK(h.is_alive(waits));
  CHECK(h.inbox[waits].empty());
  h.run(milliseconds(200));
  const Refused refused = h.refusal(waits);
  CHECK(refused.code == ErrorCode::deadline);
  CHECK(refused.message == "rank 0 waited 5 s for the present run of job j to end");
}

TEST_CASE("core: progress tells who is missing") {
  CoreHarness h;
  const PeerId w0 = h.worker("j", 0, 4);
  h.run(seconds(1));
  h.worker("j", 2, 4);
  CHECK(h.got<JoinProgress>(w0).empty());
  h.run(milliseconds(1100));
  CHECK(h.last<JoinProgress>(w0) == JoinProgress{2, {Rank{1}, Rank{3}}, 0});
  h.server();
  h.run(seconds(2));
  CHECK(h.got<JoinProgress>(w0).size() == 2);
  CHECK(h.last<JoinProgress>(w0).servers == 1);
}

TEST_CASE("core: the join deadline names missing ranks and fails who has joined") {
  CoreHarness h;
  const PeerId server = h.server();
  auto hello = CoreHarness::hello("resnet50", 0, 4);
  hello.join_timeout_ms = 90'000;
  const PeerId w0 = h.say_hello(hello);
  h.run(seconds(10));
  const PeerId w1 = h.worker("resnet50", 1, 4);
  h.worker("resnet50", 3, 4);
  h.run(milliseconds(59'900));
  CHECK(h.got<JobFailed>(w0).empty());
  h.run(milliseconds(200));
  for (const PeerId peer : {w0, w1}) {
    const Error error = h.last<JobFailed>(peer).error;
    CHECK(error.code == ErrorCode::deadline);
    CHECK(error.message ==
          "job resnet50: 3 of 4 workers joined in 70 s; missing rank 2; "
          "rank 1 (host gpu-1) waited its 60 s");
  }
  CHECK(h.core.job_count() == 0);
  CHECK(h.got<OpenJob>(server).empty());
  CHECK(h.got<JobEnded>(server).empty());
}

TEST_CASE("core: the join deadline says who was refused, and why") {
  CoreHarness h;
  h.server();
  const PeerId w0 = h.worker("j", 0, 2);
  h.worker("j", 2, 3);
  h.run(seconds(61));
  const Error error = h.last<JobFailed>(w0).error;
  CHECK(error.code == ErrorCode::configuration);
  CHECK(error.message ==
        "job j: 1 of 2 workers joined in 60 s; missing rank 1; a worker that came as rank 2 was refused: "
        "world-size of job j differs: rank 0 (host gpu-0) has 2, rank 2 (host gpu-2) has 3");
}

TEST_CASE("core: a missing rank that comes with other settings ends the join of all, with the same error") {
  CoreHarness h;
  h.server();
  std::vector<PeerId> others{h.worker("j", 0, 4), h.worker("j", 2, 4)};
  const Refused refused = h.refusal(h.worker("j", 1, 3));
  h.run(seconds(1));
  CHECK(h.got<JobFailed>(others[0]).empty());
  others.push_back(h.worker("j", 3, 4));  // comes later, and hears it too
  h.run(milliseconds(1100));
  for (const PeerId peer : others) {
    CHECK(h.last<JobFailed>(peer).error.code == ErrorCode::configuration);
    CHECK(h.last<JobFailed>(peer).error.message == refused.message);
    CHECK(h.last<JobFailed>(peer).error.advice == refused.advice);
  }
  CHECK(h.core.job_count() == 0);
}

TEST_CASE("core: a rank that is taken does not end the join of the others, also if its holder dies") {
  CoreHarness h;
  h.server();
  const PeerId w0 = h.worker("j", 0, 3);
  const PeerId w1 = h.worker("j", 1, 3);
  h.refusal(h.worker("j", 1, 3));
  h.kill(w1);
  h.run(seconds(5));
  CHECK(h.got<JobFailed>(w0).empty());
}

TEST_CASE("core: a refused worker that comes back as it should is forgiven") {
  CoreHarness h;
  h.server();
  const PeerId w0 = h.worker("j", 0, 3);
  h.worker("j", 1, 4);
  h.worker("j", 1, 3);
  h.run(seconds(61));
  CHECK(h.last<JobFailed>(w0).error.code == ErrorCode::deadline);
}

TEST_CASE("core: a late joiner with little patience waits its own time") {
  CoreHarness h;
  h.server();
  const PeerId w0 = h.worker("j", 0, 3);
  h.run(seconds(20));
  auto hello = CoreHarness::hello("j", 1, 3);
  hello.join_timeout_ms = 15'000;
  h.say_hello(hello);
  h.run(milliseconds(14'900));
  CHECK(h.got<JobFailed>(w0).empty());
  h.run(milliseconds(200));
  CHECK(h.last<JobFailed>(w0).error.message ==
        "job j: 2 of 3 workers joined in 35 s; missing rank 2; rank 1 (host gpu-1) waited its 15 s");
}

TEST_CASE("core: a late joiner with little patience is in time for the start") {
  CoreHarness h;
  h.server();
  const PeerId w0 = h.worker("j", 0, 2);
  h.run(seconds(20));
  auto hello = CoreHarness::hello("j", 1, 2);
  hello.join_timeout_ms = 1000;
  h.say_hello(hello);
  CHECK(h.got<JobStart>(w0).size() == 1);
}

TEST_CASE("core: who joins again with the rest of its time ends when it would have") {
  CoreHarness h;
  h.server();
  const PeerId before = h.worker("j", 0, 3);
  auto patient = CoreHarness::hello("j", 1, 3);
  patient.join_timeout_ms = 90'000;
  const PeerId w1 = h.say_hello(patient);
  h.run(seconds(20));
  h.lose(before);
  auto rest = CoreHarness::hello("j", 0, 3);
  rest.join_timeout_ms = 40'000;
  const PeerId again = h.say_hello(rest);
  CHECK(h.got<Welcome>(again).empty());  // until its lost connection counts as dead
  h.run(milliseconds(39'900));
  CHECK(h.got<Welcome>(again).size() == 1);
  CHECK(h.got<JobFailed>(w1).empty());
  h.run(milliseconds(200));
  CHECK(h.got<JobFailed>(again).size() == 1);
  CHECK(h.last<JobFailed>(w1).error.message ==
        "job j: 2 of 3 workers joined in 60 s; missing rank 2; rank 0 (host gpu-0) waited its 40 s");
}

TEST_CASE("core: the join deadline says that no server has registered, and how to start one") {
  CoreHarness h;
  h.core.set_server_command("bps-server --scheduler 10.0.0.9:4710");
  const PeerId w0 = h.worker("j", 0, 1);
  h.run(seconds(61));
  const Error error = h.last<JobFailed>(w0).error;
  CHECK(error.message == "job j: 1 of 1 workers joined in 60 s; no server has registered");
  CHECK(error.advice == "start at least one: bps-server --scheduler 10.0.0.9:4710");
}

TEST_CASE("core: a job that has not started may wait for a server for a shorter time") {
  CoreOptions options;
  options.job.server_wait = seconds(2);
  CoreHarness h(1, options);
  const PeerId w0 = h.worker("j", 0, 2);
  h.run(milliseconds(1900));
  const PeerId server = h.server();
  h.run(seconds(5));
  CHECK(h.got<JobFailed>(w0).empty());
  h.lose(server);
  h.run(milliseconds(1900));
  CHECK(h.got<JobFailed>(w0).empty());
  h.run(seconds(1));
  const Error error = h.last<JobFailed>(w0).error;
  CHECK(error.code == ErrorCode::peer_lost);
  CHECK_THAT(error.message, Contains("job j: 1 of 2 workers joined; no server has been there for 2"));
}

TEST_CASE("core: the join deadline also ends a start that a server does not confirm") {
  CoreHarness h;
  h.auto_ack = false;
  const PeerId server = h.server();
  const PeerId w0 = h.worker("j", 0, 1);
  h.run(seconds(61));
  CHECK_THAT(h.last<JobFailed>(w0).error.message,
             Contains("server 1 (host cpu-1") && Contains("has not confirmed"));
  CHECK(h.got<JobEnded>(server).size() == 1);
  // A late acknowledgement is no violation.
  h.say(server, Ack{h.last<OpenJob>(server).request, {}});
  CHECK(h.is_alive(server));
}

TEST_CASE("core: a worker may leave while the job gathers, and its rank is free again") {
  CoreHarness h;
  const PeerId w0 = h.worker("j", 0, 2);
  h.say(w0, Leave{});
  CHECK(h.got<Left>(w0).size() == 1);
  CHECK(h.core.job_count() == 0);
  h.worker("j", 1, 2);
  const PeerId again = h.worker("j", 0, 2);
  CHECK(h.got<Welcome>(again).size() == 1);
  h.lose(w0);
  h.run(seconds(1));
  CHECK(h.core.node_count() == 2);
}

TEST_CASE("core: a job ends when all have left, and nothing of it remains") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = h.running_job("j", 3);
  h.say(workers[1], Leave{});
  CHECK(h.got<Left>(workers[1]).size() == 1);
  CHECK(h.last<WorkerLeft>(server).rank == Rank{1});
  h.lose(workers[1]);
  h.run(seconds(10));
  CHECK(h.got<JobFailed>(workers[0]).empty());
  h.say(workers[0], Leave{});
  CHECK(h.got<JobEnded>(server).empty());
  h.say(workers[2], Leave{});
  CHECK(h.last<JobEnded>(server).error.code == ErrorCode::ok);
  CHECK(h.core.job_count() == 0);
  h.say(workers[2], Leave{});  // said twice, answered twice
  CHECK(h.got<Left>(workers[2]).size() == 2);
  h.lose(workers[0]);
  h.lose(workers[2]);
  CHECK(h.core.node_count() == 1);
  CHECK(h.core.peer_count() == 1);
}

TEST_CASE("core: what breaks the protocol costs the connection, with the reason") {
  CoreHarness h;
  const PeerId server = h.server();
  CHECK_THAT(h.refusal(h.say_hello(Heartbeat{})).message,
             Contains("Heartbeat from a peer that has not said hello"));
  CHECK_THAT(h.refusal(h.say_hello(HelloLane{})).message, Contains("HelloLane"));
  CHECK_THAT(h.refusal(h.say_hello(HelloLocal{})).message, Contains("HelloLocal"));

  const PeerId early = h.worker("early", 0, 2);
  h.say(early, testing::declare_one(1, "w", 10));
  CHECK(h.refusal(early).message == "Declare before the job has started");

  const auto workers = h.running_job("j", 2);
  h.say(workers[1], JobStart{});
  CHECK_THAT(h.refusal(workers[1]).message, Contains("JobStart from a worker"));
  h.run(milliseconds(400));
  CHECK_THAT(h.last<JobFailed>(workers[0]).error.message,
             Contains("dropped, because of: JobStart from a worker"));

  h.say(server, Ack{12345, {}});
  CHECK_THAT(h.refusal(server).message, Contains("request 12345"));
}

TEST_CASE("core: limits on jobs, workers and servers") {
  CoreOptions options;
  options.max_jobs = 2;
  options.max_workers = 3;
  options.max_servers = 1;
  CoreHarness h(1, options);
  h.worker("a", 0, 4);
  const PeerId b = h.worker("b", 0, 4);
  CHECK_THAT(h.refusal(h.worker("c", 0, 4)).message, Contains("2 jobs, its limit"));
  h.worker("a", 1, 4);
  CHECK_THAT(h.refusal(h.worker("a", 2, 4)).message, Contains("3 workers, its limit"));
  h.say(b, Leave{});
  CHECK(h.got<Welcome>(h.worker("c", 0, 4)).size() == 1);
  h.server();
  CHECK_THAT(h.refusal(h.server()).message, Contains("1 servers, its limit"));
}

TEST_CASE("core: servers that workers could not reach are refused") {
  CoreHarness h;
  HelloServer hello;
  hello.host = "cpu";
  hello.shards = 1;
  hello.data = {"0.0.0.0", 4711};
  CHECK_THAT(h.refusal(h.say_hello(hello)).advice, Contains("--advertise"));
  hello.data = {"10.0.0.1", 0};
  CHECK(h.refusal(h.say_hello(hello)).code == ErrorCode::configuration);
  hello.data = {"127.0.0.1", 4711};
  const PeerId first = h.say_hello(hello);
  CHECK(h.got<Welcome>(first).size() == 1);
  hello.host = "other";
  CHECK_THAT(h.refusal(h.say_hello(hello)).message,
             Contains("server 1 (host cpu, 127.0.0.1:4711)") && Contains("other"));
}

TEST_CASE("core: a draining server gets no new jobs and is let go when it is unused") {
  CoreHarness h;
  const PeerId drains = h.server("a");
  h.running_job("j", 1);
  h.say(drains, Leave{});
  CHECK(h.got<Left>(drains).empty());
  const PeerId other = h.worker("k", 0, 1);
  CHECK(h.got<JobStart>(other).empty());
  const PeerId fresh = h.server("b");
  CHECK(h.last<JobStart>(other).lanes.size() == 1);
  CHECK(h.got<OpenJob>(drains).size() == 1);
  CHECK(h.got<OpenJob>(fresh).size() == 2);  // it takes the place in j, too
  CHECK(h.got<Left>(drains).size() == 1);
  h.lose(drains);
  CHECK(h.core.server_count() == 1);
  h.run(seconds(5));
  CHECK(h.got<JobFailed>(other).empty());
}

}  // namespace bps

// What follows when a worker or a server is gone.
#include "scheduler/core/scheduler_core.h"
#include "scheduler/testing/core_harness.h"

namespace bps {

using namespace testing;

TEST_CASE("core: a worker whose connection is lost fails the run for all others within the grace") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = h.running_job("j", 3);
  h.run(seconds(20));
  h.lose(workers[2]);
  h.run(milliseconds(250));
  CHECK(h.got<JobFailed>(workers[0]).empty());
  h.run(milliseconds(100));
  for (const PeerId peer : {workers[0], workers[1]}) {
    REQUIRE(h.got<JobFailed>(peer).size() == 1);
    const Error error = h.last<JobFailed>(peer).error;
    CHECK(error.code == ErrorCode::peer_lost);
    CHECK(error.message == "rank 2 (host gpu-2, 10.0.0.4:5000) of job j is gone: connection lost 0.3 s ago");
    CHECK_THAT(error.advice, Contains("75"));
  }
  CHECK(h.last<JobEnded>(server).error.code == ErrorCode::peer_lost);
  CHECK(h.core.job_count() == 0);
  // Later words of the survivors are harmless, and they may leave.
  h.say(workers[0], Barrier{0});
  h.say(workers[0], testing::declare_one(1, "w", 1));
  h.say(workers[0], Leave{});
  CHECK(h.got<Left>(workers[0]).size() == 1);
  CHECK(h.is_alive(workers[0]));
}

TEST_CASE("core: a worker that hangs is dead at the heartbeat deadline, and told so") {
  CoreHarness h;
  h.server();
  const auto workers = h.running_job("j", 2);
  h.run(seconds(10));
  h.hang(workers[1]);
  h.run(kHeartbeatTimeout - kHeartbeatInterval);  // as long as nobody who lives is taken for dead
  CHECK(h.got<JobFailed>(workers[0]).empty());
  h.run(kHeartbeatInterval + milliseconds(100));
  CHECK_THAT(h.last<JobFailed>(workers[0]).error.message,
             Contains("rank 1") && Contains("no heartbeat for 3 s"));
  CHECK_THAT(h.refusal(workers[1]).message, Contains("declared dead"));
  CHECK(h.got<JobFailed>(workers[1]).empty());
}

TEST_CASE("core: the last server that dies fails the jobs that use it") {
  CoreHarness h;
  const PeerId doomed = h.server("cpu-a");
  const auto users = h.running_job("uses", 2);
  h.lose(doomed);
  h.run(milliseconds(400));
  const Error error = h.last<JobFailed>(users[0]).error;
  CHECK(error.code == ErrorCode::peer_lost);
  CHECK(error.message ==
        "server 1 (host cpu-a, 10.1.0.1:4711) of job uses is gone: connection lost 0.3 s ago; no other "
        "server is "
        "there to take its place");
  CHECK(h.got<JobFailed>(users[1]).size() == 1);
  CHECK(h.core.server_count() == 0);
}

TEST_CASE("core: a server that dies while a job gathers is only gone") {
  CoreHarness h;
  const PeerId server = h.server();
  const PeerId w0 = h.worker("j", 0, 2);
  h.lose(server);
  h.run(seconds(1));
  CHECK(h.got<JobFailed>(w0).empty());
  const PeerId w1 = h.worker("j", 1, 2);
  CHECK(h.got<JobStart>(w1).empty());
  h.server();
  CHECK(h.got<JobStart>(w1).size() == 1);
}

TEST_CASE("core: a server that dies while a job opens is left out") {
  CoreHarness h;
  h.auto_ack = false;
  const PeerId dies = h.server("a");
  const PeerId stays = h.server("b");
  const PeerId w0 = h.worker("j", 0, 1);
  const OpenJob first = h.last<OpenJob>(stays);
  h.lose(dies);
  h.run(milliseconds(400));
  CHECK(h.got<JobFailed>(w0).empty());
  CHECK(h.last<JobEnded>(stays).job_run == first.job_run);
  REQUIRE(h.got<OpenJob>(stays).size() == 2);
  h.say(stays, Ack{first.request, {}});  // of the run as it was
  CHECK(h.got<JobStart>(w0).empty());
  h.say(stays, Ack{h.last<OpenJob>(stays).request, {}});
  const JobStart start = h.last<JobStart>(w0);
  REQUIRE(start.lanes.size() == 1);
  CHECK(start.lanes[0].server == ServerId{2});
}

TEST_CASE("core: a run is not started with a worker that is suspected") {
  CoreHarness h;
  h.server();
  const PeerId w0 = h.worker("j", 0, 2);
  h.lose(w0);
  const PeerId w1 = h.worker("j", 1, 2);
  CHECK(h.got<JobStart>(w1).empty());
  h.run(milliseconds(400));
  CHECK(h.got<JobFailed>(w1).empty());
  h.worker("j", 0, 2);
  CHECK(h.got<JobStart>(w1).size() == 1);
}

TEST_CASE("core: another process on a server's address is a death and a birth") {
  CoreHarness h;
  HelloServer hello;
  hello.host = "cpu";
  hello.shards = 1;
  hello.data = {"10.1.0.1", 4711};
  const PeerId old = h.say_hello(hello);
  const PeerId w0 = h.worker("j", 0, 1);
  h.say(old, Ack{h.last<OpenJob>(old).request, {}});
  const PeerId born = h.say_hello(hello);
  CHECK(h.last<Welcome>(born).server != h.last<Welcome>(old).server);
  CHECK_THAT(h.last<JobFailed>(w0).error.message, Contains("another process serves its address now"));
  CHECK(h.closed.count(old) == 1);
  CHECK(h.core.server_count() == 1);
  CHECK(h.core.job_count() == 0);
}

TEST_CASE("core: a failed run takes no joins, its name does") {
  CoreHarness h;
  h.server();
  const auto workers = h.running_job("j", 2);
  const JobRun run = h.last<Welcome>(workers[0]).job_run;
  h.lose(workers[1]);
  h.run(milliseconds(400));
  auto late = CoreHarness::hello("j", 1, 2);
  late.job_run = run;
  const Refused refused = h.refusal(h.say_hello(late));
  CHECK(refused.code == ErrorCode::peer_lost);
  CHECK_THAT(refused.message, Contains("takes no joins: it has failed: rank 1 (host gpu-1"));
  const PeerId fresh = h.worker("j", 1, 2);
  CHECK(h.last<Welcome>(fresh).job_run != run);
}

TEST_CASE("core: a lost process cannot take up its place again") {
  CoreHarness h;
  auto worker = CoreHarness::hello("j", 0, 2);
  worker.incarnation = Incarnation{77};
  CHECK(h.refusal(h.say_hello(worker)).code == ErrorCode::peer_lost);
  HelloServer server;
  server.host = "cpu";
  server.data = {"10.1.0.1", 4711};
  server.shards = 1;
  server.incarnation = Incarnation{78};
  CHECK(h.refusal(h.say_hello(server)).code == ErrorCode::peer_lost);
}

TEST_CASE("core: nobody dies of the scheduler's own pause") {
  CoreHarness h;
  h.server();
  const auto workers = h.running_job("j", 2);
  auto hello = CoreHarness::hello("k", 0, 2);
  hello.join_timeout_ms = 10'000;
  const PeerId gathers = h.say_hello(hello);
  h.run(seconds(2));
  h.now += seconds(60);
  h.core.tick(h.now);
  h.carry_out();
  h.run(seconds(7));
  CHECK(h.got<JobFailed>(workers[0]).empty());
  CHECK(h.got<JobFailed>(gathers).empty());
  h.run(seconds(2));
  CHECK(h.got<JobFailed>(gathers).size() == 1);
}

TEST_CASE("core: an expelled worker counts as lost") {
  CoreHarness h;
  h.server();
  const auto workers = h.running_job("j", 2);
  h.core.expel(h.now, workers[0], make_error(ErrorCode::protocol, "it does not read"));
  h.carry_out();
  CHECK(h.refusal(workers[0]).message == "it does not read");
  h.run(milliseconds(400));
  CHECK_THAT(h.last<JobFailed>(workers[1]).error.message, Contains("rank 0") && Contains("it does not read"));
}

TEST_CASE("core: the log says once that a server is gone, with what becomes of each job") {
  CoreHarness h;
  const PeerId a = h.server("a");
  h.server("b");
  const PeerId idle = h.server("c");
  const auto gone = [&](const std::string& server) {
    return std::count_if(h.log.begin(), h.log.end(), [&](const std::string& line) {
      return line.find(server) != std::string::npos && line.find("is gone") != std::string::npos;
    });
  };
  h.lose(idle);
  h.run(milliseconds(400));
  CHECK(gone("server 3") == 1);
  h.running_job("j", 1);
  h.lose(a);
  h.run(milliseconds(400));
  CHECK(gone("server 1") == 1);
  CHECK_THAT(h.log.back(),
             Contains("server 1") && Contains("of job j is gone") && Contains("partitions move"));
}

}  // namespace bps

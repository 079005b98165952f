#include "proto/auth/auth_harness.h"
#include "scheduler/testing/scheduler_harness.h"

namespace bps {
namespace {

using namespace testing;

// With a job of two workers that runs.
struct RunningDaemon : Daemon {
  RunningDaemon() {
    REQUIRE(scheduler->start());
    server = Daemon::server();
    w0 = worker(0, 2);
    w1 = worker(1, 2);
    REQUIRE(server->last<OpenJob>() != nullptr);
    server->say(Ack{server->last<OpenJob>()->request, {}});
  }

  Link server, w0, w1;
};

Error closed() { return make_error(ErrorCode::cancelled, "the peer closed the connection"); }

}  // namespace

TEST_CASE("scheduler: a job from hello to end") {
  RunningDaemon d;
  CHECK(d.scheduler->endpoint() == Endpoint{"127.0.0.1", 4710});
  const Link &server = d.server, &w0 = d.w0, &w1 = d.w1;
  REQUIRE(w0->last<JobStart>() != nullptr);
  CHECK(w0->max_header_bytes == kMaxControlHeaderBytes);
  CHECK(server->max_header_bytes == kMaxControlHeaderBytes);
  d.run(seconds(4), {server, w0, w1});
  const auto beats = std::count_if(w0->sent.begin(), w0->sent.end(), [](const Message& message) {
    return std::holds_alternative<Heartbeat>(message);
  });
  CHECK(beats >= 3);
  CHECK(beats <= 5);
  for (const Link& link : {w0, w1})
    link->say(Leave{});
  CHECK(w1->last<Left>() != nullptr);
  CHECK(server->last<JobEnded>()->error.code == ErrorCode::ok);
  for (const Link& link : {w0, w1})
    link->hang_up(closed());
  CHECK(d.scheduler->connection_count() == 1);
  CHECK(d.scheduler->core().job_count() == 0);
}

TEST_CASE(
    "scheduler: addresses that are not loopback need a key or --insecure; a taken port is an error of "
    "start") {
  SchedulerOptions options;
  options.listen = {"0.0.0.0", 4710};
  {
    Daemon d(options);
    const Status status = d.scheduler->start();
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::configuration);
    CHECK_THAT(status.error().message, Contains("0.0.0.0:4710"));
    CHECK_THAT(status.error().advice,
               Contains("--insecure") && Contains("--key-file") && Contains("--tls-cert"));
  }
  SECTION("--insecure") { options.insecure = true; }
  SECTION("--key-file") { options.key = testing::key_of(32, 1); }
  SECTION("mutual TLS") { options.mutual_tls = true; }
  Daemon d(options);
  d.transport.refuse_with = os_error("cannot listen on 0.0.0.0:4710", EADDRINUSE);
  const Status status = d.scheduler->start();
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::os);
}

TEST_CASE("scheduler: who says no hello in time is dropped") {
  ExpectLog expected("is dropped before its handshake");
  Daemon d;
  REQUIRE(d.scheduler->start());
  const Link silent = d.connect();
  d.run(milliseconds(4900));
  CHECK(silent->open());
  d.run(milliseconds(200));
  CHECK(silent->closed);
  CHECK(expected.seen() == 1);
  CHECK_THAT(d.lines.back(), Contains("10.0.0.1:5000") && Contains("it took 5 s"));
  // A hello is enough, however long the job gathers.
  const Link worker = d.worker(0, 2);
  d.run(seconds(20), {worker});
  CHECK(worker->open());
}

TEST_CASE("scheduler: of too many connections without a hello the oldest goes") {
  ExpectLog expected("are not through theirs either");
  SchedulerOptions options;
  options.max_greeting = 3;
  Daemon d(options);
  REQUIRE(d.scheduler->start());
  const Link worker = d.worker(0, 2);
  std::vector<Link> idle;
  for (int i = 0; i < 4; ++i)
    idle.push_back(d.connect());
  CHECK(idle[0]->closed);  // at once: its descriptor is needed
  for (int i = 1; i < 4; ++i)
    CHECK(idle[static_cast<std::size_t>(i)]->open());
  CHECK(worker->open());
  CHECK(expected.seen() == 1);
}

TEST_CASE("scheduler: what anyone can provoke is a line a second, with the number of the others") {
  ExpectLog no_hello("has not said hello"), refused("is refused");
  Daemon d;
  REQUIRE(d.scheduler->start());
  const Link member = d.worker(0, 2);
  d.lines.clear();
  for (int i = 0; i < 50; ++i) {
    d.connect(Heartbeat{});
    d.worker(0, 3);
  }
  CHECK(d.lines.size() == 1);
  d.run(seconds(1), {member});
  d.lines.clear();
  d.connect(Heartbeat{});
  REQUIRE(d.lines.size() == 1);
  CHECK_THAT(d.lines[0], Contains("has not said hello") && Contains("(and 99 others before)"));
}

TEST_CASE("scheduler: a limit on connections") {
  ExpectLog expected("is turned away");
  SchedulerOptions options;
  options.max_connections = 2;
  Daemon d(options);
  REQUIRE(d.scheduler->start());
  d.worker(0, 3);
  d.worker(1, 3);
  CHECK(d.connect()->closed);
  CHECK(d.scheduler->connection_count() == 2);
}

TEST_CASE("scheduler: a refusal is sent, then the connection is closed and forgotten") {
  ExpectLog expected("is refused");
  Daemon d;
  REQUIRE(d.scheduler->start());
  const Link first = d.worker(0, 2);
  const Link second = d.worker(0, 2);
  REQUIRE(second->last<Refused>() != nullptr);
  CHECK(second->flushing);
  CHECK(second->max_header_bytes == kMaxHelloHeaderBytes);
  CHECK(first->open());
  CHECK(d.scheduler->connection_count() == 1);
}

TEST_CASE("scheduler: payloads have no place on control connections") {
  ExpectLog expected("with a payload");
  Daemon d;
  REQUIRE(d.scheduler->start());
  const Link worker = d.worker(0, 2);
  worker->say(Heartbeat{}, true);
  CHECK(worker->last<Refused>()->message == "Heartbeat with a payload");
  CHECK(worker->flushing);
  const Link stranger = d.connect();
  stranger->say(PushPull{}, true);
  CHECK(stranger->flushing);
  CHECK(d.scheduler->connection_count() == 0);
}

TEST_CASE("scheduler: a peer that does not read is given up, and its job told") {
  ExpectLog dropped("it does not read");
  RunningDaemon d;
  const Link &server = d.server, &w0 = d.w0, &w1 = d.w1;
  w1->queued_bytes = (64u << 20) + 1;
  d.run(2 * kHeartbeatInterval, {server, w0});
  CHECK_FALSE(w1->open());
  REQUIRE(w0->last<JobFailed>() != nullptr);
  CHECK_THAT(w0->last<JobFailed>()->error.message,
             Contains("rank 1 (host gpu-1, 10.0.0.3:5000)") && Contains("does not read: more than 64 MiB"));
  CHECK(dropped.seen() >= 1);
}

TEST_CASE("scheduler: who speaks another protocol is a warning, who hangs up before a hello is none") {
  ExpectLog expected("speaks HTTP");
  Daemon d;
  REQUIRE(d.scheduler->start());
  d.connect()->hang_up(make_error(ErrorCode::protocol, "the peer speaks HTTP"));
  d.connect()->hang_up(closed());
  CHECK(expected.seen() == 1);
  CHECK(d.scheduler->connection_count() == 0);
}

TEST_CASE("scheduler: what anyone can provoke is logged once a second, with its number") {
  ExpectLog expected("speaks HTTP");
  ExpectLog counted("(and 99 others before)");
  Daemon d;
  REQUIRE(d.scheduler->start());
  for (int i = 0; i < 100; ++i)
    d.connect()->hang_up(make_error(ErrorCode::protocol, "the peer speaks HTTP"));
  CHECK(expected.seen() == 1);
  d.run(seconds(1));
  d.connect()->hang_up(make_error(ErrorCode::protocol, "the peer speaks HTTP"));
  CHECK(expected.seen() == 2);
  CHECK(counted.seen() == 1);
}

TEST_CASE("scheduler: a lost worker fails the job of the others") {
  ExpectLog expected("is gone: connection lost 0.3 s ago");
  RunningDaemon d;
  const Link &server = d.server, &w0 = d.w0, &w1 = d.w1;
  w1->hang_up(closed());
  d.run(milliseconds(400), {server, w0});
  REQUIRE(w0->last<JobFailed>() != nullptr);
  CHECK(w0->open());
  CHECK(server->last<JobEnded>() != nullptr);
}

TEST_CASE("scheduler: shut_down tells everyone and ends when they have closed") {
  ExpectLog expected("stopping");
  Daemon d;
  REQUIRE(d.scheduler->start());
  d.run(seconds(7));
  const Link server = d.server();
  const Link w0 = d.worker(0, 1);
  const Link silent = d.connect();
  server->say(Ack{server->last<OpenJob>()->request, {}});
  bool stopped = false;
  d.scheduler->shut_down(make_error(ErrorCode::peer_lost, "the scheduler is stopping"),
                         [&] { stopped = true; });
  CHECK(w0->last<JobFailed>()->error.message == "the scheduler is stopping");
  CHECK(w0->last<Refused>() != nullptr);
  CHECK(server->last<Refused>() != nullptr);
  w0->say(Leave{});  // crossed it; no answer any more
  w0->hang_up(closed());
  d.loop.run_tasks();
  CHECK(d.transport.listening());
  CHECK_FALSE(stopped);
  server->hang_up(closed());
  d.loop.run_tasks();
  CHECK_FALSE(d.transport.listening());
  CHECK_FALSE(stopped);
  d.run(milliseconds(1100));  // it might have been an administrator
  CHECK_FALSE(silent->open());
  d.run(milliseconds(1100));
  CHECK(stopped);
  CHECK(d.loop.pending_timers() == 0);
}

TEST_CASE("scheduler: shut_down waits for a peer that does not close for its farewell only") {
  Daemon d;
  REQUIRE(d.scheduler->start());
  d.run(seconds(7));
  const ExpectLog expected("job j failed: the scheduler is stopping");
  const bool is_server = GENERATE(true, false);  // which has to tell its lanes
  const Link peer = is_server ? d.server() : d.worker(0, 2);
  const Duration farewell = is_server ? Scheduler::kServerFarewell : Scheduler::kFarewell;
  bool stopped = false;
  d.scheduler->shut_down(make_error(ErrorCode::peer_lost, "the scheduler is stopping"),
                         [&] { stopped = true; });
  d.run(farewell - milliseconds(100));
  CHECK_FALSE(stopped);
  d.run(milliseconds(200));
  CHECK(stopped);
  CHECK_FALSE(peer->open());
}

namespace {

// A running scheduler with a server and an administrator, who has asked for the end.
struct Ending {
  Ending()
      : d([this] {
          SchedulerOptions options;
          options.ended = [this] { ended = true; };
          return options;
        }()) {
    REQUIRE(d.scheduler->start());
    d.run(seconds(7));
    server = d.server();
    admin = d.connect(HelloAdmin{});
    admin->say(EndCluster{5});
    d.loop.run_tasks();
  }

  bool ended = false;
  Daemon d;
  Link server, admin;
};

}  // namespace

TEST_CASE("scheduler: an administrator ends the cluster, and has the answer when the others have closed") {
  Ending e;
  REQUIRE(e.server->last<Refused>() != nullptr);
  CHECK(e.server->last<Refused>()->code == ErrorCode::closed);
  CHECK_THAT(e.server->last<Refused>()->message, Contains("has ended the cluster: bpsctl shutdown, from "));
  e.d.run(seconds(2));
  CHECK(e.admin->last<ClusterEnded>() == nullptr);
  const bool servers_close = GENERATE(true, false);
  if (servers_close) {
    e.server->hang_up(closed());
  } else {
    e.d.run(Scheduler::kServerFarewell - milliseconds(1900), {e.admin});
  }
  CHECK_FALSE(e.d.transport.listening());
  REQUIRE(e.admin->last<ClusterEnded>() != nullptr);
  CHECK(*e.admin->last<ClusterEnded>() == ClusterEnded{5, 0, 1});
  CHECK(e.admin->last<Refused>() == nullptr);
  CHECK_FALSE(e.ended);
  const bool admin_closes = GENERATE(true, false);
  if (admin_closes) {
    e.admin->hang_up(closed());
  } else {
    e.d.run(milliseconds(1100));
  }
  e.d.loop.run_tasks();
  CHECK(e.ended);
  CHECK_FALSE(e.admin->open());
  CHECK(e.d.loop.pending_timers() == 0);
}

TEST_CASE("scheduler: who asks for the end while it is under way gets the same answer") {
  Ending e;
  const Link second = e.d.connect(HelloAdmin{});
  second->say(EndCluster{6});
  const Link greeting = e.d.connect();  // and one that is just connecting
  CHECK(second->last<ClusterEnded>() == nullptr);
  e.server->hang_up(closed());
  e.d.run(milliseconds(100), {e.admin, second});
  CHECK(second->last<ClusterEnded>() == nullptr);
  greeting->say(HelloAdmin{});
  greeting->say(EndCluster{7});
  e.d.run(milliseconds(100));
  REQUIRE(second->last<ClusterEnded>() != nullptr);
  CHECK(*second->last<ClusterEnded>() == ClusterEnded{6, 0, 1});
  REQUIRE(greeting->last<ClusterEnded>() != nullptr);
  CHECK(*greeting->last<ClusterEnded>() == ClusterEnded{7, 0, 1});
  for (const Link& link : {e.admin, second, greeting})
    link->hang_up(closed());
  e.d.loop.run_tasks();
  CHECK(e.ended);
}

// Supervisors start workers again as soon as these have ended.
TEST_CASE("scheduler: workers that keep coming do not keep the end of the cluster from coming") {
  Ending e;
  std::vector<Link> workers;
  for (int i = 0; i < 60 && e.admin->last<ClusterEnded>() == nullptr; ++i) {
    workers.push_back(e.d.worker(0, 2));
    e.d.run(milliseconds(50), {e.admin});
    if (i == 5) e.server->hang_up(closed());
  }
  CHECK(workers.front()->last<Refused>() != nullptr);
  REQUIRE(e.admin->last<ClusterEnded>() != nullptr);
  e.admin->hang_up(closed());
  e.d.loop.run_tasks();
  CHECK(e.ended);
}

TEST_CASE("scheduler: an administrator who ends the cluster and goes keeps nobody") {
  Ending e;
  e.admin->hang_up(closed());
  e.server->hang_up(closed());
  e.d.loop.run_tasks();
  CHECK(e.ended);
}

TEST_CASE("scheduler: one that was just started waits for those of the one before it, and ends them") {
  Daemon d;
  REQUIRE(d.scheduler->start());
  bool stopped = false;
  d.scheduler->shut_down(make_error(ErrorCode::peer_lost, "bye"), [&] { stopped = true; });
  d.run(seconds(5));
  HelloServer hello = Daemon::server_hello();
  hello.incarnation = Incarnation{7};
  hello.server = ServerId{1};
  const Link server = d.connect(hello);
  REQUIRE(server->last<Refused>() != nullptr);
  CHECK(server->last<Refused>()->message == "bye");
  d.run(milliseconds(1100));
  CHECK_FALSE(stopped);
  server->hang_up(closed());
  d.loop.run_tasks();
  CHECK(stopped);
}

TEST_CASE("scheduler: an idle scheduler shuts down at once, and stop leaves nothing behind") {
  {
    Daemon d;
    REQUIRE(d.scheduler->start());
    d.run(seconds(7));
    bool stopped = false;
    d.scheduler->shut_down(make_error(ErrorCode::peer_lost, "bye"), [&] { stopped = true; });
    d.loop.run_tasks();
    CHECK(stopped);
  }
  Daemon d;
  REQUIRE(d.scheduler->start());
  const Link worker = d.worker(0, 2);
  d.scheduler->stop();
  d.scheduler->stop();
  CHECK_FALSE(worker->open());
  CHECK_FALSE(d.transport.listening());
  CHECK(d.loop.pending_timers() == 0);
}

TEST_CASE("scheduler: nobody is dead whose words it has not read yet, however long it is busy") {
  // Said once in ten seconds.
  const ExpectLog late("is late by "), lost("job j failed: rank 1");
  RunningDaemon d;
  d.w1->has_input = true;
  d.run(seconds(4), {d.server, d.w0});
  CHECK(d.w1->open());
  CHECK(d.w0->last<JobFailed>() == nullptr);
  CHECK(late.seen() == 1);
  const Link admin = d.connect(HelloAdmin{});
  admin->say(AskCluster{1});
  REQUIRE(admin->last<ClusterState>() != nullptr);
  CHECK(admin->last<ClusterState>()->lag_ms >= 3000);
  SECTION("it has said something") {
    d.w1->say(Heartbeat{});
    d.w1->has_input = false;
    d.run(seconds(2), {d.server, d.w0, d.w1});
    CHECK(d.w0->last<JobFailed>() == nullptr);
  }
  SECTION("it has not") {
    d.w1->has_input = false;
    d.run(milliseconds(200), {d.server, d.w0});
    CHECK(d.w0->last<JobFailed>() != nullptr);
  }
}

TEST_CASE("scheduler: who has lost his connection may be among those that say hello, but not for ever") {
  const ExpectLog late("is late by "), lost("job j failed: rank 1");
  RunningDaemon d;
  const bool is_accepted = GENERATE(true, false);
  CAPTURE(is_accepted);
  Link somebody;
  if (is_accepted) {
    somebody = d.connect();
    somebody->has_input = true;
  } else {
    d.transport.somebody_connects = true;
  }
  d.w1->hang_up(closed());
  d.run(milliseconds(500), {d.server, d.w0});
  CHECK(d.w0->last<JobFailed>() == nullptr);
  d.run(milliseconds(3500), {d.server, d.w0});
  CHECK(d.w0->last<JobFailed>() != nullptr);
}

TEST_CASE("scheduler: a hello that it has not read yet is not too late") {
  const ExpectLog late("is late by "), dropped("is dropped before its handshake: it took 5 s");
  Daemon d;
  REQUIRE(d.scheduler->start());
  const Link says = d.connect(), silent = d.connect(), dribbles = d.connect();
  says->has_input = dribbles->has_input = true;
  d.run(milliseconds(5200));
  CHECK(says->open());
  says->say(Daemon::server_hello());
  says->has_input = false;
  CHECK(says->last<Welcome>() != nullptr);
  d.run(seconds(6), {says});
  CHECK_FALSE(silent->open());
  CHECK_FALSE(dribbles->open());
  CHECK(says->open());
}

}  // namespace bps

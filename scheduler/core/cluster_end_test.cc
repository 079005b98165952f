#include "scheduler/core/cluster_end.h"

#include <catch2/catch.hpp>

#include "scheduler/testing/core_harness.h"

namespace bps {

using namespace testing;

TEST_CASE("core: stop tells everyone and refuses who comes later") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = h.running_job("j", 2);
  const PeerId gathers = h.worker("k", 0, 2);
  h.core.stop(h.now, make_error(ErrorCode::peer_lost, "the cluster is ended"));
  h.carry_out();
  for (const PeerId peer : {workers[0], workers[1], gathers}) {
    CHECK(h.last<JobFailed>(peer).error.message == "the cluster is ended");
    CHECK(h.refusal(peer).message == "the cluster is ended");
  }
  CHECK(h.got<JobEnded>(server).size() == 1);
  CHECK(h.refusal(server).code == ErrorCode::closed);
  CHECK(h.refusal(h.worker("new", 0, 1)).message == "the cluster is ended");
  CHECK(h.core.job_count() + h.core.peer_count() + h.core.node_count() + h.core.server_count() == 0);
  h.run(seconds(5));
}

TEST_CASE("core: administrators ask for the end of everything, and stay for the answer") {
  CoreHarness h;
  const PeerId server = h.server();
  const auto workers = h.running_job("j", 2);
  const PeerId idle = h.say_hello(HelloAdmin{});
  const PeerId other = h.say_hello(HelloAdmin{});
  const PeerId admin = h.say_hello(HelloAdmin{});
  CHECK_FALSE(h.core.asked_to_end());
  h.say(admin, EndCluster{7});
  h.say(other, EndCluster{8});
  REQUIRE(h.core.asked_to_end());
  CHECK(h.got<JobFailed>(workers[0]).empty());
  h.core.stop(h.now, make_error(ErrorCode::peer_lost, "bye", "again"));
  h.carry_out();
  for (const PeerId peer : {workers[0], workers[1]})
    CHECK(h.refusal(peer).code == ErrorCode::peer_lost);
  CHECK(h.refusal(server).code == ErrorCode::closed);  // no mistake of its own
  CHECK(h.refusal(server).message == "bye");
  const PeerId late = h.say_hello(HelloAdmin{});
  h.say(late, EndCluster{9});
  h.run(seconds(7));
  for (const PeerId peer : {admin, other, late}) {
    CHECK(h.core.waits_for_end(peer));
    CHECK(h.got<ClusterEnded>(peer).empty());
  }
  const PeerId too_late = h.say_hello(HelloAdmin{});
  CHECK_FALSE(h.core.waits_for_end(too_late));
  h.core.answer_end();
  h.carry_out();
  std::uint64_t request = 7;
  for (const PeerId peer : {admin, other, late}) {
    CHECK(h.last<ClusterEnded>(peer) == ClusterEnded{request++, 1, 1});
    CHECK(h.closed.count(peer) == 1);
  }
  CHECK(h.refusal(idle).message == "bye");
  CHECK(h.refusal(too_late).message == "bye");
  CHECK(h.core.peer_count() == 0);
}

TEST_CASE("core: who may come back after the end has begun is awaited, refused and counted") {
  CoreHarness h;
  h.run(seconds(2));
  const PeerId server = h.server();
  const auto workers = h.running_job("j", 1);
  HelloServer known = h.hello_of(server);
  known.term = h.last<Welcome>(server).term;
  known.incarnation = h.last<Welcome>(server).incarnation;
  known.server = h.last<Welcome>(server).server;
  SECTION("of this scheduler, for the reconnect grace") {
    h.run(seconds(10));
    h.lose(server);
    h.core.stop(h.now, make_error(ErrorCode::peer_lost, "bye"));
    h.carry_out();
    CHECK(h.core.may_come(h.now));
    CHECK(h.refusal(h.server_again(known)).code == ErrorCode::closed);
    h.run(milliseconds(350));
    CHECK_FALSE(h.core.may_come(h.now));
  }
  SECTION("of the one before, for the collect time") {
    h.core.stop(h.now, make_error(ErrorCode::peer_lost, "bye"));
    h.carry_out();
    known.term.number = 0;
    known.incarnation = Incarnation{4711};
    HelloWorker worker = h.hello("k", 0, 1);
    worker.incarnation = Incarnation{4712};
    worker.job_run = JobRun{4713};
    const PeerId admin = h.say_hello(HelloAdmin{});
    h.say(admin, EndCluster{1});
    for (int twice = 0; twice < 2; ++twice) {
      CHECK(h.refusal(h.server_again(known)).code == ErrorCode::closed);
      CHECK(h.refusal(h.say_hello(worker)).code == ErrorCode::peer_lost);
    }
    CHECK(h.refusal(h.worker("new", 0, 1)).message == "bye");  // it has not been there
    h.run(milliseconds(3900));
    CHECK(h.core.may_come(h.now));
    h.run(milliseconds(200));
    CHECK_FALSE(h.core.may_come(h.now));
    h.core.answer_end();
    h.carry_out();
    CHECK(h.last<ClusterEnded>(admin) == ClusterEnded{1, 2, 2});
  }
  SECTION("nobody of a scheduler that has been there for long") {
    h.run(seconds(10));
    h.core.stop(h.now, make_error(ErrorCode::peer_lost, "bye"));
    h.carry_out();
    CHECK_FALSE(h.core.may_come(h.now));
  }
  CHECK(h.core.state().runs.empty());
}

TEST_CASE("core: a worker may not end the cluster") {
  CoreHarness h;
  const PeerId worker = h.worker("j", 0, 2);
  h.say(worker, EndCluster{1});
  CHECK(h.refusal(worker).code == ErrorCode::protocol);
  CHECK_FALSE(h.core.asked_to_end());
}

}  // namespace bps

// Asynchronous tensors of a server that is lost: decision 0015.
#include <catch2/catch.hpp>

#include "scheduler/testing/move_harness.h"

namespace bps {
namespace {

using namespace testing;
using Catch::Contains;

struct AsyncJob : CoreHarness {
  AsyncJob() {
    auto_settle = false;
    Declare declare = declare_one(1, "w", kElements);
    declare.tensors[0].mode = Mode::async;
    say(workers[0], declare);
  }
  const PeerId a = server("a");
  const PeerId b = server("b");
  const std::vector<PeerId> workers = running_job("j", 2);
};

TEST_CASE("move: asynchronous tensors move like others") {
  AsyncJob h;
  h.kill(h.a);
  CHECK(View(h, h.workers[0]).owned_by(ServerId{2}) == 10);
  CHECK(h.got<Moved>(h.workers[1]).size() == 1);
  CHECK(h.got<JobFailed>(h.workers[0]).empty());
  const auto slices = h.got<DeclareSlices>(h.b);
  REQUIRE(!slices.empty());
  CHECK(slices.back().moved);
  CHECK(slices.back().tensors.at(0).mode == Mode::async);
}

TEST_CASE("move: not if a worker has gone with what only it may have had of an asynchronous tensor") {
  AsyncJob h;
  h.say(h.workers[1], Leave{});
  SECTION("the other one had not settled") {
    h.kill(h.workers[1]);
    h.kill(h.a);
    CHECK_THAT(h.last<JobFailed>(h.workers[0]).error.message,
               Contains("server 1") && Contains("rank 1 had closed") && Contains("asynchronous tensor 'w'"));
  }
  SECTION("it had") {
    h.say(h.workers[0], Settled{h.last<Settle>(h.workers[0]).number});
    h.kill(h.workers[1]);
    h.kill(h.a);
    CHECK(h.got<JobFailed>(h.workers[0]).empty());
    CHECK(View(h, h.workers[0]).owned_by(ServerId{2}) == 10);
  }
}

TEST_CASE("move: not if that worker goes while another server is to begin without it") {
  AsyncJob h;
  const PeerId c = h.server("c");
  h.stop_acking(h.b);
  h.say(h.workers[1], Leave{});
  SECTION("of what drains, nobody takes the place") {
    h.say(h.a, Leave{});
    h.kill(h.workers[1]);
    acknowledge_moves(h, h.b);
    CHECK(h.got<JobFailed>(h.workers[0]).empty());
    CHECK(h.got<Left>(h.a).empty());
    CHECK(View(h, h.workers[0]).owned_by(ServerId{1}) == 5);
    h.kill(c);
    CHECK(h.got<JobFailed>(h.workers[0]).empty());
  }
  SECTION("what is lost is lost") {
    h.kill(h.a);
    CHECK(h.got<JobFailed>(h.workers[0]).empty());
    h.kill(h.workers[1]);
    CHECK_THAT(h.last<JobFailed>(h.workers[0]).error.message,
               Contains("server 1") && Contains("rank 1 had closed") && Contains("asynchronous tensor 'w'"));
  }
}

}  // namespace
}  // namespace bps

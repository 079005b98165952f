// Workers that leave while servers come and go.
#include "scheduler/testing/move_harness.h"

namespace bps {
namespace {

using namespace testing;

TEST_CASE("leave: a worker lingers until the others have what it may have, and hears of moves meanwhile") {
  CoreHarness h;
  h.auto_settle = false;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  const auto workers = h.running_job("j", 3);
  h.say(workers[0], declare_one(1, "w", kElements));
  h.say(workers[2], Leave{});
  CHECK(h.last<WorkerLeft>(a).lingers);
  CHECK(h.got<Left>(workers[2]).empty());
  CHECK(h.got<Settle>(workers[2]).empty());
  const std::uint64_t number = h.last<Settle>(workers[0]).number;
  CHECK(h.last<Settle>(workers[1]).number == number);
  h.kill(b);
  CHECK(h.got<Moved>(workers[2]).size() == 1);
  h.say(workers[0], Settled{number});
  h.say(workers[0], Settled{number});
  CHECK(h.got<Left>(workers[2]).empty());
  h.say(workers[1], Leave{});  // so it has settled
  CHECK(h.got<Left>(workers[2]).size() == 1);
  CHECK_FALSE(h.got<WorkerLeft>(a)[2].lingers);
  CHECK(h.got<Left>(workers[1]).empty());
  h.kill(workers[2]);
  CHECK(h.got<JobFailed>(workers[0]).empty());
  h.say(workers[0], Leave{});
  CHECK(h.got<Left>(workers[0]).size() == 1);
  CHECK(h.got<Left>(workers[1]).size() == 1);
  CHECK(h.core.job_count() == 0);
}

TEST_CASE("leave: one that dies while it lingers is gone, and the job goes on") {
  CoreHarness h;
  h.auto_settle = false;
  const PeerId a = h.server("a");
  const auto workers = h.running_job("j", 2);
  h.say(workers[1], Leave{});
  h.kill(workers[1]);
  CHECK(h.got<JobFailed>(workers[0]).empty());
  CHECK_FALSE(h.last<WorkerLeft>(a).lingers);
  h.say(workers[0], Settled{h.last<Settle>(workers[0]).number});
  CHECK(h.is_alive(workers[0]));
  h.say(workers[0], Settled{99});
  CHECK_THAT(h.refusal(workers[0]).message, Contains("Settled 99"));
}

TEST_CASE("leave: no server goes while one lingers that keeps no answers") {
  CoreHarness h;
  h.auto_settle = false;
  const PeerId a = h.server("a");
  const PeerId b = h.server("b");
  HelloWorker careless = CoreHarness::hello("j", 1, 2);
  careless.retain = false;
  const PeerId first = h.worker("j", 0, 2);
  const PeerId second = h.say_hello(careless);
  h.say(first, declare_one(1, "w", kElements));
  h.say(second, Leave{});
  h.say(a, Leave{});
  CHECK(h.got<Left>(a).empty());
  CHECK(h.got<Moved>(first).empty());
  SECTION("until it has gone") {
    h.say(first, Settled{h.last<Settle>(first).number});
    CHECK(h.got<Left>(second).size() == 1);
    CHECK(View(h, first).owned_by(ServerId{2}) == 10);
    CHECK(h.got<Left>(a).size() == 1);
  }
  SECTION("or is lost") {
    h.kill(second);
    CHECK(View(h, first).owned_by(ServerId{2}) == 10);
    CHECK(h.got<Left>(a).size() == 1);
  }
  CHECK(h.is_alive(b));
}

TEST_CASE("move: who has left is not told, and a server that comes hears of it") {
  CoreHarness h;
  const PeerId a = h.server("a");
  const auto workers = h.running_job("j", 3);
  h.say(workers[0], declare_one(1, "w", 1));
  h.say(workers[2], Leave{});
  const PeerId b = h.server("b");
  h.kill(a);
  CHECK(h.got<Moved>(workers[0]).size() == 1);
  CHECK(h.got<Moved>(workers[2]).empty());
  CHECK(h.last<WorkerLeft>(b).rank == Rank{2});
}

}  // namespace
}  // namespace bps

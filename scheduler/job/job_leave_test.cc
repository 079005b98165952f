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
  CHECK(h.got<Left>(workers[1]).size() == 1);  // worker 0 has settled for good
  CHECK(h.got<Settle>(workers[0]).size() == 1);
  h.kill(workers[2]);
  CHECK(h.got<JobFailed>(workers[0]).empty());
  h.say(workers[0], Leave{});
  CHECK(h.got<Left>(workers[0]).size() == 1);
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

// A job that closes, and what the scheduler has to do for that.
struct Closing {
  explicit Closing(std::uint32_t world, Mode mode = Mode::sync) {
    h.auto_settle = false;
    server = h.server();
    workers = h.running_job("j", world);
    Declare declare = declare_one(1, "w", 1000);
    declare.tensors[0].mode = mode;
    for (const PeerId worker : workers)
      h.say(worker, declare);
  }
  std::size_t settles(std::size_t rank) { return h.got<Settle>(workers[rank]).size(); }
  bool has_left(std::size_t rank) { return h.got<Left>(workers[rank]).size() == 1; }
  void leave(std::size_t rank) { h.say(workers[rank], Leave{}); }
  void settle(std::size_t rank) { h.say(workers[rank], Settled{h.last<Settle>(workers[rank]).number}); }
  CoreHarness h;
  PeerId server;
  std::vector<PeerId> workers;
};

TEST_CASE("leave: a worker settles once, whoever leaves") {
  constexpr std::uint32_t kWorld = 100;
  Closing c(kWorld);
  const bool at_once = GENERATE(true, false);
  CAPTURE(at_once);
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
    c.leave(rank);
    for (std::uint32_t other = rank + 1; rank == 0 && !at_once && other < kWorld; ++other)
      c.settle(other);
    CHECK(c.has_left(rank) == (!at_once || rank + 1 == kWorld));
  }
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
    CHECK(c.has_left(rank));
    CHECK(c.settles(rank) == (rank == 0 ? 0 : 1));
  }
  CHECK(c.h.core.job_count() == 0);
}

TEST_CASE("leave: who has not settled holds up all who have left, also those that left later") {
  Closing c(4);
  c.leave(3);
  c.leave(2);
  c.settle(0);
  CHECK_FALSE(c.has_left(3));
  CHECK_FALSE(c.has_left(2));
  SECTION("until it settles") { c.settle(1); }
  SECTION("until it leaves") { c.leave(1); }
  SECTION("and what it says over the connection before counts no more, nor does it have to be said again") {
    c.h.lose(c.workers[1]);
    CHECK_FALSE(c.has_left(3));
    return;
  }
  CHECK(c.has_left(3));
  CHECK(c.has_left(2));
  CHECK(c.settles(0) == 1);
}

TEST_CASE(
    "leave: an asynchronous tensor goes on without who has left, so all settle for each; one call at a "
    "time") {
  Closing c(5, Mode::async);
  c.leave(4);
  REQUIRE(c.settles(0) == 1);
  // While the first call is not answered, two more leave: they share the next one.
  c.leave(3);
  c.leave(2);
  CHECK(c.settles(0) == 1);
  c.settle(0);
  CHECK(c.settles(0) == 2);
  CHECK(c.settles(1) == 1);
  CHECK_FALSE(c.has_left(4));
  c.settle(1);
  CHECK(c.has_left(4));
  CHECK_FALSE(c.has_left(3));
  c.settle(0);
  c.settle(1);
  CHECK(c.has_left(3));
  CHECK(c.has_left(2));
  CHECK(c.settles(0) == 2);
  // Nothing is open: who leaves now asks anew.
  c.leave(1);
  CHECK(c.settles(0) == 3);
  CHECK_FALSE(c.has_left(1));
  c.settle(0);
  CHECK(c.has_left(1));
}

TEST_CASE("leave: what was settled before an asynchronous tensor was declared does not count for it") {
  Closing c(3);
  c.leave(2);
  c.settle(0);
  c.settle(1);
  CHECK(c.has_left(2));
  Declare declare = declare_one(2, "later", 1000);
  declare.tensors[0].mode = Mode::async;
  for (const std::size_t rank : {0, 1})
    c.h.say(c.workers[rank], declare);
  c.leave(1);
  CHECK_FALSE(c.has_left(1));
  CHECK(c.settles(0) == 2);
  c.settle(0);
  CHECK(c.has_left(1));
}

TEST_CASE("leave: who leaves first may not share what the others still sum") {
  CoreHarness h;
  h.auto_settle = false;
  h.server("a");
  const auto workers = h.running_job("j", 4);
  Declare declare = declare_one(1, "w", kElements);
  declare.tensors[0].ranks = {Rank{0}, Rank{1}, Rank{2}};
  for (std::size_t rank = 0; rank < 3; ++rank)
    h.say(workers[rank], declare);
  h.say(workers[3], Leave{});
  for (std::size_t rank = 0; rank < 3; ++rank)
    h.say(workers[rank], Settled{h.last<Settle>(workers[rank]).number});
  CHECK(h.got<Left>(workers[3]).size() == 1);
  h.say(workers[2], Leave{});
  CHECK(h.got<Left>(workers[2]).empty());
  for (std::size_t rank = 0; rank < 2; ++rank) {
    REQUIRE(h.got<Settle>(workers[rank]).size() == 2);
    h.say(workers[rank], Settled{h.last<Settle>(workers[rank]).number});
  }
  CHECK(h.got<Left>(workers[2]).size() == 1);
}

TEST_CASE("leave: only what was asked is settled") {
  Closing c(3, Mode::async);
  const auto number = GENERATE(std::uint64_t{0}, std::uint64_t{2}, std::uint64_t{99});
  c.leave(2);
  c.h.say(c.workers[0], Settled{number});
  CHECK_THAT(c.h.refusal(c.workers[0]).message, Contains(fmt::format("Settled {}", number)));
}

TEST_CASE("leave: who waits at a barrier that cannot be done any more hears of it once") {
  Closing c(4);
  c.h.say(c.workers[0], Barrier{0});
  for (const std::size_t rank : {3, 2, 1})
    c.leave(rank);
  REQUIRE(c.h.got<BarrierDone>(c.workers[0]).size() == 1);
  CHECK(c.h.last<BarrierDone>(c.workers[0]).error.code == ErrorCode::configuration);
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

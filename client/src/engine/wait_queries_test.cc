#include "client/src/engine/wait_queries.h"

#include <catch2/catch.hpp>
#include <vector>

#include "proto/base/loop/virtual_loop.h"

namespace bps {
namespace {

using namespace std::chrono_literals;

struct World {
  void ask(const std::string& tensor, Duration patience = 250ms) {
    queries.ask(Subject::tensor, tensor, patience,
                [this](const std::optional<Waits>& waits) { answers.push_back(waits); });
  }
  VirtualLoop loop;
  std::vector<AskWaits> sent;
  std::vector<std::optional<Waits>> answers;
  WaitQueries queries{loop, [this](const Message& message) { sent.push_back(std::get<AskWaits>(message)); }};
};

Waits waits_of(std::uint64_t request, std::vector<Wait> waits) {
  return {request, {}, std::move(waits), 0, {}};
}

Wait round_wait() {
  return {"job", WaitKind::round, "t", 3, 500, 1, 2, 1, {{false, 1, "gpu-1", PartyState::alive, 400}}};
}

TEST_CASE("wait queries: an answer comes to who asked, and the scheduler gets a little less time") {
  World world;
  world.ask("t");
  world.ask("u");
  REQUIRE(world.sent.size() == 2);
  CHECK(world.sent[0].tensor == "t");
  CHECK(world.sent[0].patience_ms == 200);
  world.queries.answered(waits_of(world.sent[1].request, {round_wait()}));
  REQUIRE(world.answers.size() == 1);
  CHECK(world.answers[0]->waits.size() == 1);
  world.queries.answered(waits_of(world.sent[1].request, {}));
  CHECK(world.answers.size() == 1);
}

TEST_CASE("wait queries: nobody waits for an answer for ever") {
  World world;
  world.ask("t");
  world.loop.run_for(249ms);
  CHECK(world.answers.empty());
  world.loop.run_for(1ms);
  REQUIRE(world.answers.size() == 1);
  CHECK_FALSE(world.answers[0]);
  world.queries.answered(waits_of(world.sent[0].request, {}));
  CHECK(world.answers.size() == 1);
  for (std::size_t i = 0; i <= WaitQueries::kMaxOpen; ++i)
    world.ask("t");
  CHECK(world.answers.size() == 2);  // one too many
  world.queries.give_up();
  CHECK(world.answers.size() == 2 + WaitQueries::kMaxOpen);
}

TEST_CASE("wait queries: what the worker knows and what the scheduler says become one sentence") {
  const std::string local = "round 3 of t: 0 of 1 partitions answered; waiting for server 1";
  const std::string missing = "round 3 of t: 1 of 2 pushed, missing rank 1 (host gpu-1, last seen 0.4 s ago)";
  CHECK(explain_round(waits_of(1, {round_wait()}), "t", 3, local, 10s).text ==
        missing + "; 0 of 1 partitions answered; waiting for server 1");
  Wait stored = round_wait();
  stored.kind = WaitKind::store;
  CHECK(explain_round(waits_of(1, {stored}), "t", 3, local, 10s).text ==
        "round 3 of t, which is complete and not over at rank 1 (host gpu-1, last seen 0.4 s ago)"
        "; 0 of 1 partitions answered; waiting for server 1");
  CHECK(explain_round(waits_of(1, {stored}), "t", 4, local, 10s).text == local);
  CHECK(explain_round(waits_of(1, {round_wait(), stored}), "t", 3, local, 10s).text ==
        missing +
            "; round 3 of t, which is complete and not over at rank 1 (host gpu-1, last seen 0.4 s ago)"
            "; 0 of 1 partitions answered; waiting for server 1");
  CHECK(explain_round(waits_of(1, {round_wait()}), "t", 4, local, 10s).text == local);
  CHECK(explain_round(waits_of(1, {}), "t", 3, local, 10s).text == local);
  CHECK(explain_round(std::nullopt, "t", 3, local, 10s).text ==
        local + "; the scheduler has not said whom it waits for");
  Waits silent = waits_of(1, {});
  silent.silent = {{true, 2, "cpu-2", PartyState::alive, 900}};
  CHECK(explain_round(silent, "t", 3, local, 10s).text ==
        local + "; not asked, because silent: server 2 (host cpu-2, last seen 0.9 s ago)");
  CHECK(explain(waits_of(1, {round_wait()}), WaitKind::barrier, "a barrier", 10s).text == "a barrier");
}

TEST_CASE("wait queries: ranks that wait for each other are a deadlock when it has lasted") {
  Wait wait = round_wait();
  const auto is_deadlock = [&](std::uint64_t cycle_ms, const std::string& tensor = "t") {
    wait.cycle_ms = cycle_ms;
    return explain_round(waits_of(1, {wait}), tensor, 3, "round 3 of t: ...", 10s).is_deadlock;
  };
  CHECK_FALSE(is_deadlock(0));
  CHECK_FALSE(is_deadlock(9'999));
  CHECK(is_deadlock(10'000));
  CHECK(is_deadlock(~std::uint64_t{0}));
  CHECK_FALSE(is_deadlock(10'000, "u"));
  Wait stored = round_wait();
  stored.kind = WaitKind::store;
  CHECK(explain_round(waits_of(1, {wait, stored}), "t", 3, "round 3 of t: ...", 10s).is_deadlock);
  wait.kind = WaitKind::barrier;
  wait.cycle_ms = 9'999;
  CHECK_FALSE(explain(waits_of(1, {wait}), WaitKind::barrier, "a barrier", 10s).is_deadlock);
  wait.cycle_ms = 10'000;
  CHECK(explain(waits_of(1, {wait}), WaitKind::barrier, "a barrier", 10s).is_deadlock);
}

}  // namespace
}  // namespace bps

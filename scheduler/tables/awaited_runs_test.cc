#include "scheduler/tables/awaited_runs.h"

#include <catch2/catch.hpp>

namespace bps::awaited_runs_test {
namespace {

using Catch::Contains;
using namespace std::chrono_literals;

constexpr JobRun kNamed{7};
constexpr JobRun kBrought{8};
constexpr ServerId kServer{1};
constexpr PeerId kPeer{5};
const TimePoint kStart{1000s};

// A scheduler before had a run of job a; a server brings one of job b.
struct World {
  World() {
    ServerRecord record;
    record.id = kServer;
    record.peer = kPeer;
    servers.add(std::move(record));
    servers.use(kServer, kBrought);
    RunReport report;
    report.open.job = "b";
    awaited.add(kStart, kServer, {{kBrought, std::move(report)}});
  }

  std::vector<JobEnded> ended() {
    std::vector<JobEnded> out;
    for (const SchedulerAction& action : outbox.take()) {
      const auto* send = std::get_if<SendAction>(&action);
      if (send == nullptr) continue;
      CHECK(send->peer == kPeer);
      out.push_back(std::get<JobEnded>(*send->message));
    }
    return out;
  }

  Outbox outbox;
  ServerTable servers{outbox};
  AwaitedRuns awaited{{{kNamed, {"a"}}}, 2s, servers, outbox};
};

// The next scheduler: when it gives up the run of job a, after it began to wait.
Duration patience_of_next(const AwaitedRuns::Runs& state, Duration patience) {
  Outbox outbox;
  ServerTable servers{outbox};
  AwaitedRuns awaited(state, patience, servers, outbox);
  for (Duration waited{};; waited += 50ms) {
    awaited.expire(kStart + 100s + waited);
    if (!awaited.has_job("a")) return waited;
  }
}

TEST_CASE("awaited runs: the name of an awaited run is taken, and the run is its job's alone") {
  const World world;
  CHECK(world.awaited.has_job("a"));
  CHECK(world.awaited.has_job("b"));
  CHECK_FALSE(world.awaited.has_job("c"));
  CHECK(world.awaited.is_of_other(kNamed, "b"));
  CHECK_FALSE(world.awaited.is_of_other(kNamed, "a"));
  CHECK(world.awaited.is_of_other(kBrought, "a"));
  CHECK_FALSE(world.awaited.is_of_other(kBrought, "b"));
  CHECK_FALSE(world.awaited.is_of_other(JobRun{9}, "a"));
}

TEST_CASE("awaited runs: nobody comes: the server is told that its run has ended, and names are free") {
  World world;
  CHECK_FALSE(world.awaited.expire(kStart));  // from now on those that the state names have their time
  CHECK_FALSE(world.awaited.expire(kStart + 1s));
  CHECK(world.ended().empty());
  CHECK(world.awaited.expire(kStart + 2s));
  const auto ended = world.ended();
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].job_run == kBrought);
  CHECK_THAT(ended[0].error.message, Contains("none of its workers has come back"));
  CHECK(world.servers.find(kServer)->jobs.empty());
  CHECK_FALSE(world.awaited.has_brought());
  CHECK_FALSE(world.awaited.has_job("a"));
  CHECK_FALSE(world.awaited.has_job("b"));
  CHECK(world.awaited.runs().empty());
  const std::uint64_t changes = world.awaited.changes();
  CHECK_FALSE(world.awaited.expire(kStart + 9s));
  CHECK(world.awaited.changes() == changes);
}

TEST_CASE("awaited runs: of a server that is away again the runs have their time, and it is told nothing") {
  World world;
  world.awaited.forget(kServer);
  CHECK_FALSE(world.awaited.has_brought());
  CHECK(world.awaited.has_job("b"));
  CHECK_FALSE(world.awaited.expire(kStart));
  CHECK(world.awaited.expire(kStart + 2s));
  CHECK(world.ended().empty());
  CHECK_FALSE(world.awaited.has_job("b"));
}

TEST_CASE("awaited runs: a scheduler that is started again goes on waiting, and does not begin anew") {
  World world;
  world.awaited.expire(kStart);
  const std::uint64_t changes = world.awaited.changes();
  world.awaited.expire(kStart + 400ms);
  CHECK(world.awaited.changes() == changes);
  world.awaited.expire(kStart + 600ms);
  CHECK(world.awaited.changes() == changes + 1);  // it is written down while it passes
  const AwaitedRuns::Runs state = world.awaited.runs();
  CHECK(state.at(kNamed) == SchedulerState::Run{"a", 600ms});
  CHECK(state.at(kBrought) == SchedulerState::Run{"b", 600ms});
  CHECK(patience_of_next(state, 2s) == 1400ms);
  // Its nodes may have been about to come.
  CHECK(patience_of_next({{kNamed, {"a", 1900ms}}}, 2s) == AwaitedRuns::kLeast);
  CHECK(patience_of_next({{kNamed, {"a", 1h}}}, 2s) == AwaitedRuns::kLeast);
  CHECK(patience_of_next({{kNamed, {"a"}}}, 200ms) == 200ms);
}

TEST_CASE("awaited runs: a run that only a server has brought is waited for once, by whichever scheduler") {
  World world;
  world.awaited.expire(kStart + 1s);
  AwaitedRuns next(world.awaited.runs(), 2s, world.servers, world.outbox);
  next.expire(kStart + 10s);
  RunReport report;
  report.open.job = "b";
  next.add(kStart + 10s + 100ms, kServer, {{kBrought, std::move(report)}});
  CHECK_FALSE(next.expire(kStart + 10s + 900ms));
  world.outbox.take();
  CHECK(next.expire(kStart + 11s));
  CHECK(world.ended().size() == 1);
  CHECK_FALSE(next.has_brought());
}

}  // namespace
}  // namespace bps::awaited_runs_test

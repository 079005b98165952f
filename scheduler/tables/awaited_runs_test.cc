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
  AwaitedRuns awaited{{{kNamed, "a"}}, 2s, servers, outbox};
};

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
  CHECK(world.awaited.named().empty());
  CHECK(world.awaited.changes() == 1);
  CHECK_FALSE(world.awaited.expire(kStart + 9s));
}

TEST_CASE("awaited runs: a server that is away again has brought nothing") {
  World world;
  world.awaited.forget(kServer);
  CHECK_FALSE(world.awaited.has_brought());
  CHECK_FALSE(world.awaited.has_job("b"));
  CHECK(world.awaited.has_job("a"));
}

}  // namespace
}  // namespace bps::awaited_runs_test

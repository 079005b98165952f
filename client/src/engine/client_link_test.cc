// A server that this worker cannot reach any more, although both live.
#include "client/src/engine/testing/running_harness.h"
#include "proto/base/log/log.h"
#include "proto/wire/timing.h"

namespace bps::testing {

using namespace std::chrono_literals;

namespace {

// Breaks every attempt to open the lane, for as long.
void keep_down(ScriptedCluster& c, std::uint32_t lane, Duration duration) {
  const TimePoint end = c.loop.now() + duration;
  while (c.loop.now() < end) {
    if (c.lane(lane).open()) c.lane(lane).break_with(ErrorCode::unreachable, "no route to host");
    c.loop.run_for(10ms);
  }
}

std::vector<LaneLost> said(Wire& scheduler) {
  std::vector<LaneLost> out;
  for (const SentFrame& frame : scheduler.frames) {
    if (const auto* lost = std::get_if<LaneLost>(&frame.message)) out.push_back(*lost);
  }
  return out;
}

// The scheduler says that it is there.
void beat(ScriptedCluster& c) { c.scheduler().deliver(Heartbeat{}); }

}  // namespace

TEST_CASE("link: a server that stays away is reported once, and taken back when it is there again") {
  const ExpectLog away("cannot be reached"), back("is connected again");
  Running c;
  keep_down(c, 1, kHeartbeatTimeout - 100ms);
  beat(c);
  CHECK(said(c.scheduler()).empty());
  keep_down(c, 1, 200ms);
  REQUIRE(said(c.scheduler()).size() == 1);
  const LaneLost lost = said(c.scheduler()).front();
  CHECK(lost.server == ServerId{2});
  CHECK(lost.incarnation == Incarnation{101});
  CHECK(lost.lost);
  CHECK(lost.age_ms == 3000);
  CHECK(lost.reason == "no route to host");
  keep_down(c, 1, 1s);
  CHECK(said(c.scheduler()).size() == 1);
  beat(c);
  while (!c.lane(1).open())
    c.loop.run_for(100ms);
  c.welcome_lane(1);
  REQUIRE(said(c.scheduler()).size() == 2);
  CHECK(said(c.scheduler())[1] == LaneLost{ServerId{2}, Incarnation{101}, false, 0, ""});
  CHECK_FALSE(c.engine.failure());
}

TEST_CASE("link: the silence before a lane broke counts") {
  Running c;
  c.loop.run_for(2s);
  beat(c);
  c.loop.run_for(2s);
  beat(c);
  c.lane(0).break_with(ErrorCode::deadline, "connection timed out");
  CHECK(said(c.scheduler()).size() == 1);
  // Not the time before it was there.
  while (!c.lane(0).open())
    c.loop.run_for(20ms);
  c.welcome_lane(0);
  CHECK(said(c.scheduler()).size() == 2);
  c.loop.run_for(1s);
  c.lane(0).break_with(ErrorCode::deadline, "connection timed out");
  CHECK(said(c.scheduler()).size() == 2);
}

TEST_CASE("link: a server that never welcomes is reported, too") {
  ScriptedCluster c;
  c.engine.join([](Status) {});
  c.welcome_worker();
  c.scheduler().deliver(c.job_start(1));
  const auto wait = [&](Duration duration) {
    for (TimePoint end = c.loop.now() + duration; c.loop.now() < end; beat(c))
      c.loop.run_for(std::min<Duration>(1s, end - c.loop.now()));
  };
  wait(Lane::kHelloTimeout + kHeartbeatTimeout - 100ms);
  CHECK(said(c.scheduler()).empty());
  wait(200ms);
  REQUIRE(said(c.scheduler()).size() == 1);
  CHECK(said(c.scheduler()).front().reason == "it does not answer the hello");
}

TEST_CASE("link: a scheduler that is taken up again is told what holds") {
  const ExpectLog lane("cannot be reached"), lost("scheduler 127.0.0.1:4710 is lost"), back("is there again");
  Running c;
  keep_down(c, 1, 2s);
  beat(c);
  keep_down(c, 1, 1500ms);
  CHECK(said(c.scheduler()).size() == 1);
  c.scheduler().break_with(ErrorCode::unreachable, "connection reset");
  c.loop.run_for(200ms);
  c.welcome_worker();
  const auto again = said(c.scheduler());
  REQUIRE(again.size() == 1);
  CHECK(again[0].lost);
  CHECK(again[0].age_ms >= 3500);
  // Behind what was said back.
  CHECK(std::holds_alternative<LaneLost>(c.scheduler().frames.back().message));
}

TEST_CASE("link: once its partitions have moved, nothing is said of a server") {
  const ExpectLog lost("cannot be reached");
  Running c;
  keep_down(c, 1, 2s);
  beat(c);
  keep_down(c, 1, 1500ms);
  CHECK(said(c.scheduler()).size() == 1);
  Moved moved{JobRun{ScriptedCluster::kRun}, Epoch{4}, "server 2 is given up", {}, {LaneIndex{1}}, {}};
  moved.moves.push_back({PartitionId{1}, LaneIndex{0}});
  c.scheduler().deliver(moved);
  c.loop.run_for(1s);
  beat(c);
  c.loop.run_for(2500ms);
  CHECK(said(c.scheduler()).size() == 1);
}

}  // namespace bps::testing

#include "scheduler/tables/failure_detector.h"

#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "scheduler/core/pause_clock.h"

namespace bps {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const TimePoint kStart{seconds(1000)};
constexpr Incarnation kA{1};
constexpr Incarnation kB{2};

}  // namespace

TEST_CASE("failure detector: a node is silent since its last word, or the loss of its connection") {
  const TimePoint start{std::chrono::seconds(100)};
  FailureDetector detector({});
  detector.add(Incarnation{1}, start);
  detector.heard(Incarnation{1}, start + std::chrono::milliseconds(500));
  CHECK(detector.silence(Incarnation{1}, start + std::chrono::milliseconds(700)) ==
        std::chrono::milliseconds(200));
  detector.connection_lost(Incarnation{1}, start + std::chrono::milliseconds(900));
  CHECK(detector.silence(Incarnation{1}, start + std::chrono::seconds(1)) == std::chrono::milliseconds(100));
  CHECK(detector.silence(Incarnation{2}, start) == std::nullopt);
}

TEST_CASE("failure detector: silence kills at the heartbeat deadline, a word postpones it") {
  FailureDetector detector({seconds(3), milliseconds(300)});
  detector.add(kA, kStart);
  detector.add(kB, kStart);
  CHECK(detector.expire(kStart + milliseconds(2999)).empty());
  detector.heard(kB, kStart + milliseconds(2999));
  const auto deaths = detector.expire(kStart + seconds(3));
  REQUIRE(deaths.size() == 1);
  CHECK(deaths[0] == FailureDetector::Death{kA, false, seconds(3)});
  CHECK(detector.size() == 1);
  CHECK(detector.expire(kStart + milliseconds(5998)).empty());
  CHECK(detector.expire(kStart + milliseconds(5999)).size() == 1);
}

TEST_CASE("failure detector: nobody dies while something of him waits to be read") {
  FailureDetector detector({seconds(3), milliseconds(300)});
  detector.add(kA, kStart);
  detector.add(kB, kStart);
  Duration overdue{0};
  const auto unread = [&](Incarnation node, Duration late) {
    if (node == kA) overdue = late;
    return node == kA;
  };
  const auto deaths = detector.expire(kStart + milliseconds(3050), unread);
  REQUIRE(deaths.size() == 1);
  CHECK(deaths[0].node == kB);
  CHECK(overdue == milliseconds(50));
  CHECK(detector.expire(kStart + milliseconds(3100), unread).empty());
  CHECK(overdue == milliseconds(100));
  SECTION("read at last") {
    detector.heard(kA, kStart + milliseconds(3120));
    CHECK(detector.expire(kStart + milliseconds(6119)).empty());
    CHECK(detector.expire(kStart + milliseconds(6120)).size() == 1);
  }
  SECTION("it was nothing") { CHECK(detector.expire(kStart + milliseconds(3120)).size() == 1); }
}

TEST_CASE("failure detector: a lost connection is a suspicion, and death after the grace") {
  FailureDetector detector({seconds(3), milliseconds(300)});
  detector.add(kA, kStart);
  CHECK_FALSE(detector.suspected(kA));
  detector.connection_lost(kA, kStart + seconds(1));
  CHECK(detector.suspected(kA));
  // A second loss does not start the grace again.
  detector.connection_lost(kA, kStart + milliseconds(1200));
  CHECK(detector.expire(kStart + milliseconds(1299)).empty());
  const auto deaths = detector.expire(kStart + milliseconds(1310));
  REQUIRE(deaths.size() == 1);
  CHECK(deaths[0] == FailureDetector::Death{kA, true, milliseconds(310)});
  CHECK_FALSE(detector.suspected(kA));
}

TEST_CASE("failure detector: what is removed or unknown does not die") {
  FailureDetector detector({seconds(3), milliseconds(300)});
  detector.add(kA, kStart);
  detector.remove(kA);
  detector.heard(kB, kStart);
  detector.connection_lost(kB, kStart);
  CHECK_FALSE(detector.suspected(kB));
  CHECK(detector.expire(kStart + seconds(60)).empty());
}

TEST_CASE("failure detector: an own pause moves all deadlines by its length") {
  PauseClock clock(milliseconds(50));
  FailureDetector detector({seconds(3), milliseconds(300)});
  detector.add(kA, clock.advance(kStart));
  TimePoint now = kStart;
  for (int i = 0; i < 40; ++i)
    detector.expire(clock.advance(now += milliseconds(50)));  // 2 s of silence
  now += seconds(100);
  CHECK(detector.expire(clock.advance(now)).empty());
  CHECK(clock.paused() == seconds(100) - milliseconds(50));
  for (int i = 0; i < 18; ++i)
    CHECK(detector.expire(clock.advance(now += milliseconds(50))).empty());
  CHECK(detector.expire(clock.advance(now += milliseconds(50))).size() == 1);
}

TEST_CASE("pause clock: jitter is no pause, and time never goes back") {
  PauseClock clock(milliseconds(50));
  CHECK(clock.advance(kStart) == kStart);
  CHECK(clock.advance(kStart + milliseconds(200)) == kStart + milliseconds(200));
  CHECK(clock.advance(kStart + milliseconds(100)) == kStart + milliseconds(200));
  CHECK(clock.advance(kStart + milliseconds(401)) == kStart + milliseconds(250));
  CHECK(clock.advance(kStart + milliseconds(451)) == kStart + milliseconds(300));
}

TEST_CASE("failure detector: against a plain model, with random events") {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    FailureDetector detector({milliseconds(100), milliseconds(30)});
    struct Model {
      TimePoint heard;
      std::optional<TimePoint> lost;
    };
    std::map<Incarnation, Model> model;
    TimePoint now = kStart;
    std::uint64_t next = 1;
    for (int step = 0; step < 500; ++step) {
      now += milliseconds(random() % 10);
      const Incarnation node{1 + random() % next};
      switch (random() % 6) {
        case 0:
          detector.add(Incarnation{next}, now);
          model[Incarnation{next++}] = {now, std::nullopt};
          break;
        case 1:
          detector.connection_lost(node, now);
          if (model.count(node) != 0 && !model[node].lost) model[node].lost = now;
          break;
        case 2:
          detector.remove(node);
          model.erase(node);
          break;
        default:
          detector.heard(node, now);
          if (model.count(node) != 0) model[node].heard = now;
      }
      std::set<Incarnation> expected;
      for (const auto& [id, m] : model) {
        if (now - m.heard >= milliseconds(100) || (m.lost && now - *m.lost >= milliseconds(30)))
          expected.insert(id);
      }
      std::set<Incarnation> dead;
      for (const auto& death : detector.expire(now))
        dead.insert(death.node);
      REQUIRE(dead == expected);
      for (const Incarnation id : dead)
        model.erase(id);
      REQUIRE(detector.size() == model.size());
    }
  }
}

}  // namespace bps

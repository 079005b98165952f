#include "client/src/lanes/link_watch.h"

#include <catch2/catch.hpp>

namespace bps {
namespace {

using namespace std::chrono_literals;

const TimePoint kStart{1000s};

LaneTarget target(std::uint32_t server) {
  LaneTarget target;
  target.server = ServerId{server};
  target.incarnation = Incarnation{server + 100};
  return target;
}

}  // namespace

TEST_CASE("link watch: a server is reported once, when a lane has been away for the deadline") {
  LinkWatch watch;
  CHECK_FALSE(watch.due());
  watch.down(LaneIndex{0}, target(1), kStart, "reset");
  watch.down(LaneIndex{1}, target(1), kStart + 1s, "reset");
  watch.down(LaneIndex{0}, target(1), kStart + 2s, "no route");
  CHECK(watch.due() == kStart + kHeartbeatTimeout);
  CHECK(watch.take(kStart + kHeartbeatTimeout - 1ms).empty());
  const auto said = watch.take(kStart + kHeartbeatTimeout);
  REQUIRE(said.size() == 1);
  CHECK(said[0] == LaneLost{ServerId{1}, Incarnation{101}, true, 3000, "no route"});
  CHECK_FALSE(watch.due());
  CHECK(watch.take(kStart + 9s).empty());
  CHECK(watch.again(kStart + 9s) ==
        std::vector{LaneLost{ServerId{1}, Incarnation{101}, true, 9000, "no route"}});
}

TEST_CASE("link watch: what was said is taken back when all lanes are there") {
  LinkWatch watch;
  watch.down(LaneIndex{0}, target(1), kStart, "reset");
  watch.down(LaneIndex{1}, target(1), kStart, "reset");
  watch.down(LaneIndex{2}, target(2), kStart, "reset");
  CHECK(watch.take(kStart + 4s).size() == 2);
  watch.up(LaneIndex{0});
  CHECK(watch.take(kStart + 4s).empty());
  watch.up(LaneIndex{1});
  REQUIRE(watch.due());
  CHECK(watch.again(kStart + 4s).size() == 1);
  CHECK(watch.take(kStart + 4s) == std::vector{LaneLost{ServerId{1}, Incarnation{101}, false, 0, ""}});
  CHECK_FALSE(watch.due());
  // One that was not reported is not taken back.
  watch.down(LaneIndex{0}, target(1), kStart + 5s, "reset");
  watch.up(LaneIndex{0});
  CHECK_FALSE(watch.due());
  // What breaks again before it was taken back was never away.
  watch.up(LaneIndex{2});
  watch.down(LaneIndex{2}, target(2), kStart + 6s, "reset");
  CHECK_FALSE(watch.due());
  CHECK(watch.again(kStart + 6s).size() == 1);
}

TEST_CASE("link watch: of a lane that is closed nothing is said") {
  LinkWatch watch;
  watch.down(LaneIndex{0}, target(1), kStart, "reset");
  watch.down(LaneIndex{1}, target(2), kStart, "reset");
  CHECK(watch.take(kStart + 4s).size() == 2);
  watch.closed(LaneIndex{0});
  watch.closed(LaneIndex{7});
  CHECK_FALSE(watch.due());
  CHECK(watch.again(kStart + 4s).size() == 1);
  CHECK(watch.take(kStart + 9s).empty());
}

}  // namespace bps

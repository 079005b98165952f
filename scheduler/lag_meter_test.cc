#include "scheduler/lag_meter.h"

#include <catch2/catch.hpp>

namespace bps {

using namespace std::chrono_literals;

TEST_CASE("lag: the worst of timers and of what waits to be read, for a minute") {
  LagMeter meter;
  TimePoint now{1000s};
  CHECK(meter.worst(now) == Duration(0));
  meter.late(now - 20ms, now);
  CHECK(meter.worst(now) == 20ms);
  meter.watch(PeerId{7}, now);
  CHECK(meter.watched() == PeerId{7});
  meter.read(PeerId{8}, now + 500ms);  // another one
  CHECK(meter.worst(now) == 20ms);
  SECTION("read at last") { meter.read(PeerId{7}, now + 300ms); }
  SECTION("not read yet") { meter.tick(now + 300ms); }
  CHECK(meter.worst(now + 1s) == 300ms);
  CHECK(meter.worst(now + 49s) == 300ms);
  CHECK(meter.worst(now + 61s) == Duration(0));
  CHECK_FALSE(meter.take_warning());
}

TEST_CASE("lag: warned of from a second on, every ten seconds at most, with the worst") {
  LagMeter meter;
  TimePoint now{1000s};
  meter.late(now - 999ms, now);
  CHECK_FALSE(meter.take_warning());
  meter.late(now - 1200ms, now);
  CHECK(meter.take_warning() == Duration(1200ms));
  CHECK_FALSE(meter.take_warning());
  meter.late(now - 3s, now + 1s);
  CHECK_FALSE(meter.take_warning());
  meter.tick(now + 10s);
  CHECK(meter.take_warning() == Duration(4s));
  meter.tick(now + 30s);
  CHECK_FALSE(meter.take_warning());
}

}  // namespace bps

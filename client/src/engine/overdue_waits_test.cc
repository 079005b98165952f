#include "client/src/engine/overdue_waits.h"

#include <catch2/catch.hpp>

namespace bps::overdue_waits_test {
namespace {

using namespace std::chrono_literals;
using Kind = OverdueWaits::Kind;
using Item = OverdueWaits::Item;

const TimePoint kStart{1000s};

TEST_CASE("overdue waits: what waits too long is told once, the oldest of all that are new") {
  OverdueWaits waits(10s);
  const Item first{Kind::round, 1, 5}, second{Kind::round, 2, 5}, barrier{Kind::barrier, 0, 0};
  CHECK_FALSE(waits.look(kStart, {second}));
  CHECK_FALSE(waits.look(kStart + 5s, {first, second, barrier}));
  const auto overdue = waits.look(kStart + 15s, {first, second, barrier});
  REQUIRE(overdue);
  CHECK(overdue->item == second);
  CHECK(overdue->age == 15s);
  CHECK(overdue->others == 2);
  CHECK_FALSE(waits.look(kStart + 30s, {first, second, barrier}));
}

TEST_CASE("overdue waits: the next round begins anew") {
  OverdueWaits waits(10s);
  CHECK_FALSE(waits.look(kStart, {{Kind::round, 1, 5}}));
  CHECK(waits.look(kStart + 10s, {{Kind::round, 1, 5}}));
  CHECK_FALSE(waits.look(kStart + 15s, {{Kind::round, 1, 6}}));
  CHECK_FALSE(waits.look(kStart + 24s, {{Kind::round, 1, 6}}));
  CHECK(waits.look(kStart + 25s, {{Kind::round, 1, 6}}));
}

TEST_CASE("overdue waits: what is over is forgotten") {
  OverdueWaits waits(10s);
  const Item item{Kind::declaration, 1, 0};
  CHECK_FALSE(waits.look(kStart, {item}));
  CHECK_FALSE(waits.look(kStart + 5s, {}));
  CHECK_FALSE(waits.look(kStart + 12s, {item}));
}

}  // namespace
}  // namespace bps::overdue_waits_test

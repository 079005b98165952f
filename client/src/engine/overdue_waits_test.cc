#include "client/src/engine/overdue_waits.h"

#include <catch2/catch.hpp>

namespace bps::overdue_waits_test {
namespace {

using namespace std::chrono_literals;
using Kind = OverdueWaits::Kind;
using Item = OverdueWaits::Item;

const TimePoint kStart{1000s};

TEST_CASE("overdue waits: a wait is told once, when it is as old as the limit") {
  OverdueWaits waits(10s);
  const Item wait{Kind::round, 1, 5, kStart + 3s};
  auto look = waits.look(kStart, {});
  CHECK_FALSE(look.overdue);
  CHECK(look.next == kStart + 10s);  // before the first one that begins later
  look = waits.look(kStart + 10s, {wait});
  CHECK_FALSE(look.overdue);
  CHECK(look.next == kStart + 13s);
  look = waits.look(kStart + 13s, {wait});
  REQUIRE(look.overdue);
  CHECK(look.overdue->item == wait);
  CHECK(look.overdue->others == 0);
  CHECK(look.next == kStart + 23s);
  look = waits.look(kStart + 23s, {wait});
  CHECK_FALSE(look.overdue);
  CHECK(look.next == kStart + 33s);
}

TEST_CASE("overdue waits: what is overdue soon is told with the oldest, what begins later has its own turn") {
  OverdueWaits waits(10s);
  const Item first{Kind::round, 1, 5, kStart + 500ms}, oldest{Kind::round, 2, 5, kStart},
      barrier{Kind::barrier, 0, 0, kStart + 1s}, later{Kind::declaration, 1, 0, kStart + 1001ms};
  auto look = waits.look(kStart + 10s, {first, oldest, barrier, later});
  REQUIRE(look.overdue);
  CHECK(look.overdue->item == oldest);
  CHECK(look.overdue->others == 2);
  CHECK(look.next == kStart + 11001ms);
  look = waits.look(look.next, {first, oldest, barrier, later});
  REQUIRE(look.overdue);
  CHECK(look.overdue->item == later);
  CHECK(look.overdue->others == 0);
  CHECK_FALSE(waits.look(kStart + 60s, {first, oldest, barrier, later}).overdue);
}

TEST_CASE("overdue waits: the next round begins anew") {
  OverdueWaits waits(10s);
  CHECK(waits.look(kStart + 10s, {{Kind::round, 1, 5, kStart}}).overdue);
  const Item next{Kind::round, 1, 6, kStart + 15s};
  CHECK(waits.look(kStart + 20s, {next}).next == kStart + 25s);
  CHECK(waits.look(kStart + 25s, {next}).overdue);
}

}  // namespace
}  // namespace bps::overdue_waits_test

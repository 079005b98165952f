#include "server/aggregate/fence.h"

#include <catch2/catch.hpp>

namespace bps::fence_test {
namespace {

StoredRounds at(std::uint64_t round) { return {PartitionId{7}, Round{round}}; }

bool is_at_five(const Fence::Report& report) { return report.named && report.next == Round{5}; }

TEST_CASE("fence: settled when all have resumed or gone; the highest round counts") {
  Fence fence(3);
  CHECK(fence.resume(0, at(5), false));
  CHECK(fence.resume(1, at(4), true));
  CHECK(fence.waits_for(2));
  CHECK_FALSE(fence.is_settled());
  SECTION("resumed") { CHECK(fence.resume(2, at(4), false)); }
  SECTION("gone, and nobody waits for what it resumes with") {
    fence.gone(2);
    CHECK(fence.resume(2, at(9), false));
  }
  SECTION("died") { fence.died(2); }
  CHECK(fence.is_settled());
  CHECK(fence.highest() == Round{5});
  CHECK_FALSE(fence.waits_for(2));
}

TEST_CASE("fence: a contributor names one round") {
  Fence fence(2);
  CHECK(fence.allows(0, Round{3}));
  CHECK(fence.resume(0, at(3), false));
  fence.lost(0);
  CHECK_FALSE(fence.allows(0, Round{4}));
  CHECK_FALSE(fence.resume(0, at(4), false));
  CHECK(fence.resume(0, at(3), true));
  CHECK(fence.report(0).pushed);
}

TEST_CASE("fence: the result is asked of one that is here, then of the next") {
  Fence fence(3);
  fence.resume(0, at(5), false);
  fence.resume(1, at(5), false);
  fence.resume(2, at(4), false);
  CHECK(fence.holders(is_at_five).first == 0);
  fence.ask(0, Round{4}, 0);
  CHECK_FALSE(fence.is_settled());
  Retained result;
  result.round = Round{4};
  CHECK_FALSE(fence.begin(1, result));
  CHECK(fence.begin(0, result));
  CHECK(fence.is_arriving(0));
  SECTION("its lane is lost: it may return") {
    CHECK(fence.lost(0));
    CHECK(fence.holders(is_at_five).first == 1);
    fence.lost(1);
    CHECK(fence.holders(is_at_five).first == Fence::kNobody);
    CHECK(fence.holders(is_at_five).may_return);
  }
  SECTION("it has it no more") {
    fence.miss();
    CHECK(fence.holders(is_at_five).first == 1);
    fence.ask(1, Round{4}, 0);
    result.round = Round{3};
    CHECK_FALSE(fence.begin(1, result));
    fence.miss();
    CHECK(fence.is_settled());
    CHECK(fence.holders(is_at_five).first == Fence::kNobody);
    CHECK_FALSE(fence.holders(is_at_five).may_return);
  }
}

}  // namespace
}  // namespace bps::fence_test

#include "server/aggregate/round_handoff.h"

#include <catch2/catch.hpp>

namespace bps::handoff_test {
namespace {

StoredRounds at(std::uint64_t round) { return {PartitionId{7}, Round{round}}; }

constexpr std::uint64_t kBytes = 20;
const PartitionShape kShape{.elements = kBytes / sizeof(float)};
const std::vector<Contributor> kContributors{{Rank{0}}};
const RoundErrors kErrors(kShape, kContributors);

// As many bytes have come as belong to it.
bool begin(RoundHandoff& handoff, std::uint32_t contributor, const Retained& header,
           std::uint64_t bytes = kBytes) {
  return handoff.begin(contributor, header, bytes, kShape, kErrors);
}

bool is_at_five(const RoundHandoff::Report& report) { return report.named && report.next == Round{5}; }

std::vector<std::uint32_t> absent(const RoundHandoff& handoff) {
  std::vector<std::uint32_t> absent;
  handoff.name_absent(absent);
  return absent;
}

TEST_CASE("handoff: settled when all have resumed or gone; the highest round counts") {
  RoundHandoff handoff(3);
  CHECK(handoff.resume(0, at(5), false));
  CHECK(handoff.resume(1, at(4), true));
  CHECK(absent(handoff) == std::vector<std::uint32_t>{2});
  CHECK_FALSE(handoff.is_settled());
  SECTION("resumed") { CHECK(handoff.resume(2, at(4), false)); }
  SECTION("gone, and nobody waits for what it resumes with") {
    handoff.gone(2);
    CHECK(handoff.resume(2, at(9), false));
  }
  SECTION("died") { handoff.died(2); }
  CHECK(handoff.is_settled());
  CHECK(handoff.highest() == Round{5});
  CHECK(absent(handoff).empty());
}

TEST_CASE("handoff: a contributor names one round") {
  RoundHandoff handoff(2);
  CHECK(handoff.allows(0, Round{3}));
  CHECK(handoff.resume(0, at(3), false));
  handoff.lost(0);
  CHECK_FALSE(handoff.allows(0, Round{4}));
  CHECK_FALSE(handoff.resume(0, at(4), false));
  CHECK(handoff.resume(0, at(3), true));
  CHECK(handoff.report(0).pushed);
}

TEST_CASE("handoff: a result that cannot be taken arrives all the same, with its error") {
  RoundHandoff handoff(1);
  handoff.resume(0, at(5), false);
  handoff.ask(0, Round{4}, 0);
  Retained result;
  result.round = Round{4};
  SECTION("it says why there is none") {
    result.error = make_error(ErrorCode::internal, "not here any more");
    CHECK_FALSE(begin(handoff, 0, result, 0));
    CHECK(handoff.result().error.code == ErrorCode::internal);
  }
  SECTION("it has another length") {
    CHECK_FALSE(begin(handoff, 0, result, kBytes + 4));
    CHECK(handoff.result().error.code == ErrorCode::protocol);
  }
  CHECK(handoff.is_arriving(0));
  CHECK_FALSE(begin(handoff, 0, result));  // once
}

TEST_CASE("handoff: the result is asked of one that is here, then of the next") {
  RoundHandoff handoff(3);
  handoff.resume(0, at(5), false);
  handoff.resume(1, at(5), false);
  handoff.resume(2, at(4), false);
  CHECK(handoff.holders(is_at_five).first == 0);
  handoff.ask(0, Round{4}, 0);
  CHECK_FALSE(handoff.is_settled());
  Retained result;
  result.round = Round{4};
  CHECK_FALSE(begin(handoff, 1, result));
  CHECK(begin(handoff, 0, result));
  CHECK(handoff.is_arriving(0));
  SECTION("its lane is lost: it may return") {
    CHECK(handoff.lost(0));
    CHECK(handoff.holders(is_at_five).first == 1);
    handoff.lost(1);
    CHECK(handoff.holders(is_at_five).first == kNobody);
    CHECK(handoff.holders(is_at_five).may_return);
  }
  SECTION("it has it no more") {
    handoff.miss();
    CHECK(handoff.holders(is_at_five).first == 1);
    handoff.ask(1, Round{4}, 0);
    result.round = Round{3};
    CHECK_FALSE(begin(handoff, 1, result));
    handoff.miss();
    CHECK(handoff.is_settled());
    CHECK(handoff.holders(is_at_five).first == kNobody);
    CHECK_FALSE(handoff.holders(is_at_five).may_return);
  }
}

}  // namespace
}  // namespace bps::handoff_test

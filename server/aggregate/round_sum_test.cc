// The sum of one round alone, without the partition around it.
#include "server/aggregate/round_sum.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <vector>

#include "server/testing/aggregator_harness.h"

namespace bps::round_sum_test {
namespace {

constexpr std::size_t kElements = 4;
constexpr std::size_t kBytes = kElements * sizeof(float);

std::vector<std::byte> bytes_of(float value) {
  const std::vector<float> elements(kElements, value);
  std::vector<std::byte> bytes(kBytes);
  std::memcpy(bytes.data(), elements.data(), kBytes);
  return bytes;
}

PartitionShape four_floats() {
  PartitionShape shape;
  shape.elements = kElements;
  return shape;
}

// The first round of a partition, in which they take part.
struct Open {
  explicit Open(std::uint32_t n, std::size_t budget_bytes = 1 << 20)
      : contributors(ranks(n)), pools(budget_bytes), sum(shape, contributors, pools.memory(), slots) {
    sum.open(Round{0}, Operation::sum, kElements);
  }

  void into_slot(std::uint32_t contributor, float value) {
    std::memcpy(slots.take(Round{0}, false), bytes_of(value).data(), kBytes);
    sum.take_from_slot(contributor);
  }
  void into_room(std::uint32_t contributor, float value) {
    std::byte* const room = sum.make_room(contributor);
    REQUIRE(room != nullptr);
    std::memcpy(room, bytes_of(value).data(), kBytes);
    sum.take_from_room(contributor);
  }
  std::shared_ptr<TestLoan> lend(std::uint32_t contributor, float value, bool treacherous) {
    auto loan = std::make_shared<TestLoan>(bytes_of(value), treacherous);
    sum.take_lent(contributor, LentPayload(loan, 0, loan->bytes(), /*scarce=*/false));
    return loan;
  }
  float result() const {
    float first = 0;
    std::memcpy(&first, slots.aggregate(Round{0}).data(), sizeof first);
    return first;
  }

  const PartitionShape shape = four_floats();
  std::vector<Contributor> contributors;
  TestPools pools;
  RoundSlots slots{pools.slots, kBytes, pools.slots.allocate(kBytes)};
  RoundSum sum;
};

TEST_CASE("round sum: nothing is added before its turn, then all of it") {
  Open round(3);
  round.into_room(2, 1.0f);
  CHECK(round.sum.add(/*announced=*/true).spoiled == 0);
  CHECK_FALSE(round.sum.has_begun());
  // In rank order each 1 is lost to rounding; 1 + 1 first would make it 2^24 + 2.
  round.into_slot(0, 1.0f);
  round.sum.add(/*announced=*/true);
  CHECK(round.sum.is_next(1));
  CHECK_FALSE(round.sum.is_complete());
  const std::vector<std::byte> lane = bytes_of(16777216.0f);
  round.sum.take_from_lane(1, lane.data());
  CHECK(round.sum.add(/*announced=*/true).spoiled == 0);
  CHECK_FALSE(round.sum.release_lane(1));
  CHECK(round.sum.is_complete());
  CHECK(round.result() == (1.0f + 16777216.0f) + 1.0f);
}

TEST_CASE("round sum: a loan that is withdrawn while it is read spoils what was added before") {
  Open round(3);
  round.into_slot(0, 1.0f);
  const auto loan = round.lend(1, 2.0f, /*treacherous=*/true);
  round.into_room(2, 3.0f);
  const RoundSum::Progress progress = round.sum.add(/*announced=*/true);
  CHECK(progress.spoiled == 1);
  CHECK(round.sum.phase(0) == RoundSum::Phase::none);
  CHECK(round.sum.phase(1) == RoundSum::Phase::none);
  CHECK(round.sum.phase(2) == RoundSum::Phase::whole);
  CHECK(loan->given_back());
  round.into_slot(0, 1.0f);
  round.into_room(1, 2.0f);
  round.sum.add(/*announced=*/true);
  CHECK(round.sum.is_complete());
  CHECK(round.result() == 6.0f);
}

TEST_CASE("round sum: one that died counts in this round only if it is here") {
  Open round(3);
  round.into_slot(0, 1.0f);
  CHECK_FALSE(round.sum.die(0));
  CHECK(round.sum.die(1));
  CHECK(round.sum.weight() == 2);
  round.into_room(2, 3.0f);
  round.sum.add(/*announced=*/true);
  CHECK(round.sum.is_complete());
  CHECK(round.result() == 4.0f);
  round.sum.close();
  CHECK(round.sum.weight() == 1);
  CHECK(round.sum.is_absent(0));
  CHECK(round.sum.lands_in_slot(2));
}

TEST_CASE("round sum: what has no room in the budget is not set aside") {
  Open round(2, /*budget_bytes=*/0);
  CHECK(round.sum.make_room(1) == nullptr);
  CHECK_FALSE(round.sum.set_aside(1, bytes_of(1.0f).data()));
  CHECK(round.sum.phase(1) == RoundSum::Phase::not_ready);
}

}  // namespace
}  // namespace bps::round_sum_test

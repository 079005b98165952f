#include "scheduler/job/barriers.h"

#include <catch2/catch.hpp>

namespace bps {

TEST_CASE("barriers: done when all have arrived, each number on its own") {
  Barriers barriers(3);
  CHECK_FALSE(barriers.arrive(Rank{0}, 0));
  CHECK_FALSE(barriers.arrive(Rank{2}, 0));
  CHECK(barriers.arrive(Rank{1}, 0));
  CHECK(barriers.done() == 1);
  CHECK_FALSE(barriers.arrive(Rank{1}, 1));
  CHECK_FALSE(barriers.arrive(Rank{0}, 1));
  CHECK(barriers.arrive(Rank{2}, 1));
  CHECK(barriers.done() == 2);
}

TEST_CASE("barriers: a rank that is lost is not waited for") {
  Barriers barriers(3);
  barriers.arrive(Rank{0}, 0);
  barriers.arrive(Rank{0}, 1);
  barriers.arrive(Rank{2}, 0);
  barriers.arrive(Rank{2}, 1);
  CHECK(barriers.done() == 0);
  barriers.drop(Rank{1});
  CHECK(barriers.done() == 2);
  CHECK_FALSE(barriers.open());
  CHECK_FALSE(barriers.arrive(Rank{0}, 2));
  CHECK(barriers.open());
  CHECK(barriers.arrive(Rank{2}, 2));
  CHECK_FALSE(barriers.open());
  CHECK(barriers.done() == 3);
}

TEST_CASE("barriers: repeated arrivals are harmless") {
  Barriers barriers(2);
  CHECK_FALSE(barriers.arrive(Rank{0}, 0));
  CHECK_FALSE(barriers.arrive(Rank{0}, 0));
  CHECK(barriers.done() == 0);
  CHECK(barriers.arrive(Rank{1}, 0));
  CHECK_FALSE(barriers.arrive(Rank{1}, 0));
  CHECK_FALSE(barriers.arrive(Rank{0}, 0));
  CHECK(barriers.done() == 1);
}

TEST_CASE("barriers: a rank may be ahead, and several complete at once") {
  Barriers barriers(2);
  for (std::uint64_t i = 0; i < 5; ++i)
    CHECK_FALSE(barriers.arrive(Rank{0}, i));
  CHECK(barriers.arrived(Rank{0}) == 5);
  CHECK(barriers.arrive(Rank{1}, 2));
  CHECK(barriers.done() == 3);
  CHECK(barriers.acceptable(3));
  CHECK_FALSE(barriers.acceptable(3 + Barriers::kMaxAhead));
}

TEST_CASE("barriers: a rank that left blocks what it had not reached") {
  Barriers barriers(3);
  barriers.arrive(Rank{0}, 0);
  barriers.arrive(Rank{0}, 1);
  barriers.leave(Rank{0});
  REQUIRE(barriers.blocked());
  CHECK(barriers.blocked()->from == 2);
  CHECK(barriers.blocked()->left == Rank{0});
  barriers.arrive(Rank{1}, 0);
  CHECK(barriers.arrive(Rank{2}, 0));  // rank 0 had arrived before it left
  barriers.leave(Rank{1});
  CHECK(barriers.blocked()->from == 1);
  CHECK(barriers.blocked()->left == Rank{1});
}

TEST_CASE("barriers: one rank alone passes at once") {
  Barriers barriers(1);
  for (std::uint64_t i = 0; i < 3; ++i)
    CHECK(barriers.arrive(Rank{0}, i));
  CHECK(barriers.done() == 3);
}

}  // namespace bps

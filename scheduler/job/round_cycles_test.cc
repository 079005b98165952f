#include "scheduler/job/round_cycles.h"

#include <catch2/catch.hpp>
#include <vector>

namespace bps::round_cycles_test {
namespace {

constexpr std::uint32_t kPartitions = 3;  // of each tensor

// Of a job of four ranks.
OpenRound round(std::uint32_t tensor, std::uint64_t age_ms, std::vector<Rank> missing) {
  const auto absent = static_cast<std::uint32_t>(missing.size());
  return {TensorId{tensor}, Round{7}, age_ms, RoundStage::push, kPartitions, 4, absent, std::move(missing)};
}

RoundCycles::Tensor of_all(TensorId) { return {kPartitions, {}}; }

RoundCycles cycles_of(const OpenRounds& rounds) { return {rounds, of_all}; }

constexpr Rank k0{0}, k1{1}, k2{2}, k3{3};

// Two ranks wait for each other, if nothing changes that.
OpenRounds two() { return {0, {round(0, 9000, {k1}), round(1, 8000, {k0})}, 0}; }

TEST_CASE("round cycles: two ranks that wait for each other's rounds") {
  const OpenRounds open = two();
  const RoundCycles cycles = cycles_of(open);
  CHECK(cycles.where_waits(k1, open.rounds[0]) == &open.rounds[1]);
  CHECK(cycles.where_waits(k0, open.rounds[1]) == &open.rounds[0]);
  CHECK(cycles.age_ms(open.rounds[0]) == 8000);
  CHECK(cycles.age_ms(open.rounds[1]) == 8000);
}

TEST_CASE("round cycles: a rank that is only slow is no cycle") {
  // Rank 1 has pushed nothing; and rank 3 all but one round.
  const OpenRounds open{0, {round(0, 9000, {k1}), round(1, 8000, {k1}), round(2, 7000, {k1, k3})}, 0};
  const RoundCycles cycles = cycles_of(open);
  for (const OpenRound& each : open.rounds) {
    CHECK(cycles.age_ms(each) == 0);
    CHECK(cycles.where_waits(k1, each) == nullptr);
  }
  CHECK(cycles.where_waits(k3, open.rounds[2]) == &open.rounds[0]);
}

TEST_CASE("round cycles: over several ranks, as old as the youngest round of the run") {
  const OpenRounds all{0,
                       {
                           round(0, 9000, {k1, k2, k3}),  // rank 0 is in it
                           round(1, 6000, {k0, k2, k3}),  // rank 1
                           round(2, 8000, {k0, k1, k3}),  // rank 2
                           round(3, 5000, {k0, k1, k2}),  // rank 3
                       },
                       0};
  const RoundCycles cycles = cycles_of(all);
  for (const OpenRound& each : all.rounds)
    CHECK(cycles.age_ms(each) == 5000);
}

// Ranks 1 and 2 sleep.
TEST_CASE("round cycles: who does not share a tensor waits in none of its rounds") {
  OpenRound first = round(0, 9000, {k1});
  OpenRound second = round(1, 8000, {k2});
  first.expected = second.expected = 2;
  const OpenRounds open{0, {first, second}, 0};
  const RoundCycles cycles(open, [](TensorId tensor) {
    return RoundCycles::Tensor{
        kPartitions, RankList(tensor.value == 0 ? std::vector<Rank>{k0, k1} : std::vector<Rank>{k2, k3})};
  });
  for (const OpenRound& each : open.rounds) {
    CHECK(cycles.age_ms(each) == 0);
    CHECK(cycles.where_waits(each.missing[0], each) == nullptr);
  }
}

TEST_CASE("round cycles: a round that waits for ranks of a cycle cannot go on, either") {
  // Ranks 1 and 2 wait for each other; rank 3 waits for them, and is missed in the last one.
  const OpenRounds open{
      0, {round(0, 9000, {k1, k2}), round(1, 8000, {k2}), round(2, 7000, {k1}), round(3, 6000, {k3})}, 0};
  const RoundCycles cycles = cycles_of(open);
  CHECK(cycles.age_ms(open.rounds[0]) == 6000);
  CHECK(cycles.age_ms(open.rounds[1]) == 6000);
  CHECK(cycles.age_ms(open.rounds[2]) == 6000);
  CHECK(cycles.age_ms(open.rounds[3]) == 6000);
  CHECK(cycles.where_waits(k1, open.rounds[0]) == &open.rounds[1]);
}

TEST_CASE("round cycles: who is in the middle of pushing anything waits for nobody") {
  OpenRounds open = two();
  SECTION("some of its partitions are here") { open.rounds[0].partial = {k1}; }
  SECTION("some are complete, or not begun") { open.rounds[0].partitions = kPartitions - 1; }
  SECTION("of a third tensor") {
    open.rounds.push_back(round(2, 500, {k1}));
    open.rounds.back().partial = {k1};
  }
  const RoundCycles cycles = cycles_of(open);
  CHECK(cycles.age_ms(open.rounds[0]) == 0);
  CHECK(cycles.age_ms(open.rounds[1]) == 0);
  CHECK(cycles.where_waits(k1, open.rounds[0]) == nullptr);
}

// Rank 0 waits for a tensor that rank 1 has not pushed, who is at a barrier.
TEST_CASE("round cycles: a barrier on one rank against a tensor on another one") {
  const OpenRounds open{0, {round(0, 9000, {k1})}, 0};
  const auto with = [&](const OpenBarrier& barrier) { return RoundCycles(open, of_all, barrier); };
  const RoundCycles cycles = with({{k0}, {}, 8000});
  CHECK(cycles.age_ms(open.rounds[0]) == 8000);
  CHECK(cycles.barrier_age_ms() == 8000);
  CHECK(cycles.where_waits(k0) == &open.rounds[0]);
  CHECK(cycles.where_waits(k1, open.rounds[0]) == nullptr);
  CHECK(with({{k0}, {}, 9500}).barrier_age_ms() == 9000);
  SECTION("no barrier is open") { CHECK(cycles_of(open).age_ms(open.rounds[0]) == 0); }
  SECTION("the barrier waits for somebody who does nothing") {
    const RoundCycles other = with({{k1, k2}, {}, 8000});
    CHECK(other.barrier_age_ms() == 0);
    CHECK(other.age_ms(open.rounds[0]) == 0);
  }
  SECTION("a rank that is lost waits nowhere") { CHECK(with({{k0}, {k1}, 8000}).barrier_age_ms() == 0); }
  SECTION("who is in the middle of pushing may come") {
    OpenRounds busy = open;
    busy.rounds.push_back(round(1, 9000, {k0}));
    busy.rounds.back().partial = {k0};
    const RoundCycles other(busy, of_all, OpenBarrier{{k0}, {}, 8000});
    CHECK(other.barrier_age_ms() == 0);
    CHECK(other.age_ms(busy.rounds[0]) == 0);
  }
}

TEST_CASE("round cycles: over a barrier and several tensors, whatever their numbers") {
  // Rank 0 waits for rank 1, who waits for rank 2, who is at a barrier that rank 0 has not come to.
  const OpenRounds open{0, {round(0, 9000, {k1, k2}), round(1, 8000, {k2, k0})}, 0};
  const RoundCycles cycles(open, of_all, OpenBarrier{{k0, k1}, {}, 7000});
  CHECK(cycles.age_ms(open.rounds[0]) == 7000);
  CHECK(cycles.age_ms(open.rounds[1]) == 7000);
  CHECK(cycles.barrier_age_ms() == 7000);
}

TEST_CASE("round cycles: what is not known, or moves, makes none") {
  OpenRounds open = two();
  SECTION("a server has not named all who are missing") { open.rounds[1].absent = 2; }
  SECTION("or not all rounds") { open.more = 1; }
  SECTION("partitions move") { open.rounds[1].stage = RoundStage::resume; }
  SECTION("the other one is not there") { open.rounds.pop_back(); }
  CHECK(cycles_of(open).age_ms(open.rounds[0]) == 0);
  const OpenRounds nothing;
  CHECK(cycles_of(nothing).age_ms(open.rounds[0]) == 0);
}

}  // namespace
}  // namespace bps::round_cycles_test

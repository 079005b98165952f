#include "proto/wire/open_round_list.h"

#include <catch2/catch.hpp>

namespace bps {
namespace {

OpenRound open_round(std::uint32_t tensor, std::uint64_t round, std::uint64_t age_ms,
                     std::vector<Rank> missing, RoundStage stage = RoundStage::push) {
  const auto absent = static_cast<std::uint32_t>(missing.size());
  return {TensorId{tensor}, Round{round}, age_ms, stage, 1, 8, absent, std::move(missing)};
}

TEST_CASE("open rounds: who is missing at one partition is missing") {
  OpenRoundList list;
  list.add(open_round(1, 5, 100, {Rank{3}}));
  list.add(open_round(1, 5, 300, {Rank{6}, Rank{3}}));
  list.add(open_round(1, 5, 200, {}));
  const OpenRounds out = list.take(9);
  CHECK(out.request == 9);
  REQUIRE(out.rounds.size() == 1);
  const OpenRound all{TensorId{1},        Round{5},          300, RoundStage::push, 3, 8, 2,
                      {Rank{3}, Rank{6}}, {Rank{3}, Rank{6}}};
  CHECK(out.rounds[0] == all);
  CHECK(list.take(9).rounds.empty());
}

TEST_CASE("open rounds: who is missing at some partitions only is partly here") {
  OpenRoundList list;
  list.add(open_round(1, 5, 100, {Rank{3}, Rank{6}}));
  list.add(open_round(1, 5, 100, {Rank{3}, Rank{6}}));
  list.add(open_round(1, 5, 100, {Rank{3}}));
  list.add(open_round(2, 5, 100, {Rank{3}}));
  OpenRound other = open_round(2, 5, 100, {Rank{3}});  // another shard has put together
  other.partial = {Rank{3}};
  list.add(other);
  const OpenRounds out = list.take(0);
  REQUIRE(out.rounds.size() == 2);
  CHECK(out.rounds[0].missing == std::vector{Rank{3}, Rank{6}});
  CHECK(out.rounds[0].partial == std::vector{Rank{6}});
  CHECK(out.rounds[1].partial == std::vector{Rank{3}});
}

TEST_CASE("open rounds: only the oldest round of a tensor counts") {
  OpenRoundList list;
  list.add(open_round(1, 6, 50, {Rank{1}}));
  list.add(open_round(1, 5, 100, {Rank{2}}));
  list.add(open_round(1, 6, 70, {Rank{4}}));
  const OpenRounds out = list.take(0);
  REQUIRE(out.rounds.size() == 1);
  CHECK(out.rounds[0].round == Round{5});
  CHECK(out.rounds[0].missing == std::vector{Rank{2}});
}

TEST_CASE("open rounds: partitions that have moved stand apart") {
  OpenRoundList list;
  list.add(open_round(1, 5, 100, {Rank{2}}));
  list.add(open_round(1, 0, 200, {Rank{1}}, RoundStage::resume));
  list.add(open_round(1, 5, 250, {Rank{0}}, RoundStage::resume));
  const OpenRounds out = list.take(0);
  REQUIRE(out.rounds.size() == 2);
  CHECK(out.rounds[0].stage == RoundStage::resume);
  CHECK(out.rounds[0].missing == std::vector{Rank{0}, Rank{1}});
  CHECK(out.rounds[1].stage == RoundStage::push);
}

TEST_CASE("open rounds: the oldest first, young ones not, and no more than may be named") {
  OpenRoundList list;
  for (std::uint32_t tensor = 0; tensor < kMaxWaitsNamed + 10; ++tensor)
    list.add(open_round(tensor, 1, 100 + tensor, {}));
  list.add(open_round(999, 1, 10, {}));
  list.add_more(4);
  const OpenRounds out = list.take(0, 50);
  REQUIRE(out.rounds.size() == kMaxWaitsNamed);
  CHECK(out.rounds.front().age_ms == 100 + kMaxWaitsNamed + 9);
  CHECK(out.more == 14);
}

TEST_CASE("open rounds: ranks that are missing are named up to the limit, and counted") {
  OpenRound many = open_round(1, 1, 100, {});
  many.expected = many.absent = 1000;
  for (std::uint32_t rank = 0; rank < kMaxMissingNamed; ++rank)
    many.missing.push_back(Rank{2 * rank});
  OpenRoundList list;
  list.add(many);
  for (Rank& rank : many.missing)
    rank = rank.next();
  list.add(many);
  const OpenRounds out = list.take(0);
  CHECK(out.rounds[0].missing.size() == kMaxMissingNamed);
  CHECK(out.rounds[0].missing.back() == Rank{kMaxMissingNamed - 1});
  CHECK(out.rounds[0].absent == 1000);
}

}  // namespace
}  // namespace bps

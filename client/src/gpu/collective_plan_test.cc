#include "client/src/gpu/collective_plan.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>

namespace bps {
namespace {

using Kind = CollectiveStep::Kind;

std::vector<LocalPiece> pieces_of(std::uint32_t size, std::uint32_t first,
                                  std::vector<std::uint32_t> elements) {
  std::vector<LocalPiece> all;
  for (const std::uint32_t count : elements) {
    LocalPiece piece;
    piece.partition = PartitionId{first};
    piece.owner = first++ % size;
    piece.elements = count;
    all.push_back(piece);
  }
  return all;
}

std::vector<CollectivePortion> plan_reduce(const CollectivePlace& place, const Collective& collective,
                                           std::span<const LocalPiece> pieces) {
  CollectivePlan plan(place);
  plan.add(false, collective, pieces);
  return plan.take();
}

std::vector<CollectivePortion> plan_spread(const CollectivePlace& place, const Collective& collective,
                                           std::span<const LocalPiece> pieces) {
  CollectivePlan plan(place);
  plan.add(true, collective, pieces);
  return plan.take();
}

// But for where in the ring they land.
std::vector<CollectiveStep> steps_of(const CollectivePortion& portion) {
  auto steps = portion.steps;
  for (CollectiveStep& step : steps)
    step.at.reset();
  return steps;
}

TEST_CASE("collective plan: whole runs are one call, what is left over is on its own") {
  const auto pieces = pieces_of(3, 2, {64, 64, 64, 64, 64, 64, 64, 9});  // owners 2, 0 1 2, 0 1 2, 0
  const CollectivePlace place{3, 1, 1 << 20};
  const auto reduce = plan_reduce(place, {}, pieces);
  REQUIRE(reduce.size() == 1);
  CHECK(steps_of(reduce[0]) == std::vector<CollectiveStep>{{Kind::reduce, 0, 0, 64, 2},
                                                           {Kind::reduce_scatter, 1, 0, 64, 0},
                                                           {Kind::reduce_scatter, 4, 0, 64, 0},
                                                           {Kind::reduce, 7, 0, 9, 0}});
  CHECK(reduce[0].outputs == std::vector<CollectiveOutput>{{2, 0, 256, false, 0}, {5, 0, 256, false, 256}});
  const auto spread = plan_spread(place, {}, pieces);
  REQUIRE(spread.size() == 1);
  CHECK(steps_of(spread[0]) == std::vector<CollectiveStep>{{Kind::broadcast, 0, 0, 64, 2},
                                                           {Kind::all_gather, 1, 0, 64, 0},
                                                           {Kind::all_gather, 4, 0, 64, 0},
                                                           {Kind::broadcast, 7, 0, 9, 0}});
}

TEST_CASE("collective plan: alone there is nothing to call") {
  const auto pieces = pieces_of(1, 0, {64, 64, 9});
  const auto reduce = plan_reduce({1, 0, 100}, {}, pieces);
  REQUIRE(reduce.size() == 1);
  CHECK(reduce[0].steps.empty());
  CHECK(reduce[0].outputs.size() == 3);
  CHECK(plan_spread({1, 0, 100}, {}, pieces).empty());
}

TEST_CASE("collective plan: a broadcast's root sends, the owners receive, the others do nothing") {
  Collective broadcast;
  broadcast.kind = RoundKind::broadcast;
  CHECK(plan_reduce({3, 0, 1024}, broadcast, pieces_of(3, 0, {8, 8, 8})).empty());
  broadcast.root = 1;
  const auto root = plan_reduce({3, 1, 1024}, broadcast, pieces_of(3, 0, {8, 8, 8}));
  CHECK(steps_of(root[0]) == std::vector<CollectiveStep>{{Kind::send, 0, 0, 8, 0}, {Kind::send, 2, 0, 8, 2}});
  CHECK(root[0].outputs == std::vector<CollectiveOutput>{{1, 0, 32, true, 0}});
  const auto owner = plan_reduce({3, 2, 1024}, broadcast, pieces_of(3, 0, {8, 8, 8}));
  CHECK(steps_of(owner[0]) == std::vector<CollectiveStep>{{Kind::receive, 2, 0, 8, 1}});
  CHECK(plan_reduce({3, 2, 1024}, broadcast, pieces_of(3, 0, {8, 8}))[0].steps.empty());
}

TEST_CASE("collective plan: tensors of a batch begin together as long as there is room") {
  const auto small = pieces_of(2, 0, {8});
  const auto run = pieces_of(2, 0, {64, 64});
  Collective broadcast;
  broadcast.kind = RoundKind::broadcast;
  broadcast.root = 0;
  CollectivePlan plan({2, 1, 512});
  plan.add(false, {}, small);  // comes to member 0: 256 bytes, aligned
  plan.add(true, {}, small);
  plan.add(false, {}, run);  // 256 to each: full
  plan.add(true, {}, run);   // takes no room
  plan.add(false, {}, small);
  plan.add(false, broadcast, run);  // sent: on its own
  plan.add(true, {}, small);
  const auto portions = plan.take();
  REQUIRE(portions.size() == 4);
  CHECK(steps_of(portions[0]) == std::vector<CollectiveStep>{{Kind::reduce, 0, 0, 8, 0, 0},
                                                             {Kind::broadcast, 1, 0, 8, 0, 1},
                                                             {Kind::reduce_scatter, 2, 0, 64, 0, 2},
                                                             {Kind::all_gather, 4, 0, 64, 0, 3}});
  CHECK(steps_of(portions[1]) == std::vector<CollectiveStep>{{Kind::reduce, 6, 0, 8, 0, 4}});
  CHECK(steps_of(portions[2]) == std::vector<CollectiveStep>{{Kind::receive, 8, 0, 64, 0, 5}});
  CHECK(steps_of(portions[3]) == std::vector<CollectiveStep>{{Kind::broadcast, 9, 0, 8, 0, 6}});
  CHECK(portions[0].outputs == std::vector<CollectiveOutput>{{3, 0, 256, false, 0, 2}});
}

// Of random pieces: all members cut alike and make the same calls, every byte comes to its owner once, and no
// portion is more than the ring has room for.
TEST_CASE("collective plan: members agree, whatever the pieces") {
  std::mt19937 random(3);
  for (int turn = 0; turn < 400; ++turn) {
    const std::uint32_t size = 2 + static_cast<std::uint32_t>(random() % 4);
    const std::size_t portion_bytes = 256 * (1 + random() % 16);
    std::vector<std::uint32_t> elements(1 + random() % 20, 1 + static_cast<std::uint32_t>(random() % 2000));
    elements.back() = 1 + static_cast<std::uint32_t>(random() % elements.front());
    const auto pieces = pieces_of(size, static_cast<std::uint32_t>(random() % 8), elements);
    std::vector<std::vector<CollectivePortion>> plans;
    std::map<std::size_t, std::size_t> come;  // bytes of each piece
    for (std::uint32_t self = 0; self < size; ++self) {
      plans.push_back(plan_reduce({size, self, portion_bytes}, {}, pieces));
      REQUIRE(plans.back().size() == plans.front().size());
      for (std::size_t i = 0; i < plans.back().size(); ++i) {
        const CollectivePortion& portion = plans.back()[i];
        CHECK(steps_of(portion) == steps_of(plans.front()[i]));
        CHECK(portion.ring_bytes <= portion_bytes);
        for (const CollectiveOutput& output : portion.outputs) {
          CHECK(pieces[output.piece].owner == self);
          CHECK(output.at + output.bytes <= portion.ring_bytes);
          CHECK(output.offset == come[output.piece]);
          come[output.piece] += output.bytes;
        }
      }
      Collective broadcast;
      broadcast.root = 0;
      for (const CollectivePortion& portion : plan_spread({size, self, portion_bytes}, broadcast, pieces))
        CHECK(portion.ring_bytes <= portion_bytes);
    }
    for (std::size_t i = 0; i < pieces.size(); ++i)
      CHECK(come[i] == bytes_of(pieces[i]));
  }
}

}  // namespace
}  // namespace bps

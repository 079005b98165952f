// Tensors with parts: which memory an answer comes into, what of it is used, and what is added to it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "client/src/engine/testing/fake_loan.h"
#include "client/src/tensors/tensor_state.h"

namespace bps::tensor_parts_test {
namespace {

using bps::testing::FakeLoan;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kSlice = 4096;  // 1024 floats
constexpr std::size_t kElements = 2210;

Bytes floats(std::size_t count, float value) {
  Bytes bytes(count * sizeof(float));
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof value);
  return bytes;
}

// Parts of 1100, 1100 and 10 elements: partitions 0 and 1 are rank 0's, 2 is rank 1's, and 3 has 76 elements
// of rank 1, then 10 of rank 2.
struct Parted {
  Parted(Rank self_rank, bool retains, bool is_in_place)
      : self(self_rank),
        retain(retains),
        in_place(is_in_place),
        state(declaration(), placed(), kSlice, {self_rank, retains}) {}

  static TensorDeclaration declaration() {
    TensorDeclaration declaration;
    declaration.name = "t";
    declaration.elements = kElements;
    declaration.parts = {1100, 1100, 10};
    return declaration;
  }
  static DeclaredTensor placed() {
    DeclaredTensor placed;
    placed.owners.resize(4);
    return placed;
  }

  std::size_t own_begin() const { return self.value * 1100 * sizeof(float); }
  std::size_t own_bytes() const { return (self.value < 2 ? 1100 : 10) * sizeof(float); }
  std::span<std::byte> own() {
    return in_place ? std::span(whole).subspan(own_begin(), own_bytes()) : std::span(part);
  }
  void begin(const RoundCall& call) {
    Request request;
    request.call = call;
    const bool gathers = call.kind == RoundKind::all_gather;
    request.in.bytes = gathers ? own() : std::span(whole);
    request.out.bytes = gathers ? std::span(whole) : own();
    request.done = [](const Result<std::uint32_t>&) {};
    REQUIRE(state.begin(std::move(request)).ok());
    for (Partition& partition : state.partitions())
      send(partition);
  }
  void send(Partition& partition) {
    const std::size_t bytes = state.contribution(partition).bytes.size();
    CHECK(partition.cost == bytes);
    state.on_handed_over(partition, bytes > 0);
    state.on_released(partition);
  }
  Partition& at(std::size_t index) { return state.partitions()[index]; }

  // An answer that comes through a socket, or is lent.
  void answer(std::size_t index, float value, std::uint32_t weight, bool is_lent) {
    Partition& partition = at(index);
    const Bytes bytes = floats(partition.bytes / sizeof(float), value);
    REQUIRE(state.judge(partition, state.round(), bytes.size()) == TensorState::Verdict::wanted);
    if (is_lent) {
      const auto loan = FakeLoan::of(bytes);
      state.on_lent(partition, FakeLoan::payload(loan), weight);
      Bytes spare(kSlice);
      CHECK(state.fetch(partition, state.needs_spare(partition) ? spare.data() : nullptr));
      loans.push_back(loan);
      return;
    }
    std::byte* const to = state.receive(partition);
    if (to != nullptr) std::memcpy(to, bytes.data(), bytes.size());
    state.on_answer(partition, weight);
  }
  void end(std::size_t index, std::uint32_t weight) {
    REQUIRE(state.judge(at(index), state.round(), 0) == TensorState::Verdict::wanted);
    state.on_answer(at(index), weight);
  }
  Result<std::uint32_t> settle() {
    bool is_over = false;
    for (Partition& partition : state.partitions())
      is_over = state.settle(partition);
    REQUIRE(is_over);
    return state.end().result;
  }

  const Rank self;
  const bool retain, in_place;
  Bytes whole = floats(kElements, 1);
  Bytes part = floats(self.value < 2 ? 1100 : 10, 9);
  std::vector<std::shared_ptr<FakeLoan>> loans;
  TensorState state;
};

bool is_all(std::span<const std::byte> bytes, float value) {
  return std::ranges::equal(bytes, floats(bytes.size() / sizeof(float), value));
}

}  // namespace

TEST_CASE("tensor parts: a rank takes its part of a sum, and adds what it has itself") {
  const Rank self{GENERATE(0u, 1u, 2u)};
  const bool retain = GENERATE(true, false), in_place = GENERATE(true, false),
             is_lent = GENERATE(true, false);
  const bool averages = GENERATE(true, false), is_exact = GENERATE(true, false);
  CAPTURE(self.value, retain, in_place, is_lent, averages, is_exact);
  Parted t(self, retain, in_place);
  for (int round = 0; round < 2; ++round) {
    t.whole = floats(kElements, 1);
    t.begin(RoundCall::reduce_scatter(averages ? Operation::average : Operation::sum, is_exact));
    // The owner of all of a partition sends nothing where it adds.
    for (std::size_t i = 0; i < 4; ++i) {
      const bool is_owned = i < 2 ? self == Rank{0} : i == 2 && self == Rank{1};
      CHECK(t.at(i).cost == (is_owned && !is_exact ? 0 : t.at(i).bytes));
    }
    // What the server makes of it: divided only if it has all.
    const float answer = !is_exact ? 5.0f : averages ? 2.0f : 6.0f;
    for (std::size_t i = 0; i < 4; ++i) {
      const bool takes = i == 3 || (i < 2 ? self == Rank{0} : self == Rank{1});
      if (takes) t.answer(i, answer, 3, is_lent);
      if (!takes) t.end(i, 3);
    }
    const auto result = t.settle();
    REQUIRE(result.ok());
    CHECK(*result == 3);
    CHECK(is_all(t.own(), averages ? 2.0f : 6.0f));
    // Nothing else has changed.
    CHECK(is_all(std::span(t.whole).first(t.own_begin()), 1));
    CHECK(is_all(std::span(t.whole).subspan(t.own_begin() + t.own_bytes()), 1));
    if (!in_place) CHECK(is_all(t.whole, 1));
    // A server that is new gets what the last one has said, not what was made of it.
    if (!retain) continue;
    const auto kept = t.state.retained(t.at(3), {{}, Round{static_cast<std::uint64_t>(round)}});
    CHECK(kept.bytes.size() == t.at(3).bytes);
    CHECK(is_all(kept.bytes, answer));
    CHECK_FALSE(t.state.stored(t.at(2)).kept);
    CHECK(t.state.stored(t.at(3)).kept);
  }
}

TEST_CASE("tensor parts: an answer that breaks off leaves what is to be added, and comes again") {
  const bool retain = GENERATE(true, false), in_place = GENERATE(true, false);
  Parted t(Rank{1}, retain, in_place);
  t.begin(RoundCall::reduce_scatter(Operation::sum));
  for (const std::size_t index : {std::size_t{2}, std::size_t{3}}) {
    std::byte* const to = t.state.receive(t.at(index));
    REQUIRE(to != nullptr);
    std::fill_n(to, t.at(index).bytes / 2, std::byte{0xee});
    CHECK(is_all(t.whole, 1));
    REQUIRE(t.state.on_lane_broken(t.at(index), "server 1"));
    t.send(t.at(index));
    t.answer(index, 5, 3, false);
  }
  t.end(0, 3);
  t.end(1, 3);
  CHECK(t.settle().ok());
  CHECK(is_all(t.own(), 6));
}

TEST_CASE("tensor parts: who alone has given something keeps that") {
  for (const bool in_place : {false, true}) {
    Parted t(Rank{1}, true, in_place);
    t.begin(RoundCall::reduce_scatter(Operation::average));
    t.answer(2, 77, 1, false);
    t.answer(3, 77, 1, true);
    t.end(0, 1);
    t.end(1, 1);
    const auto result = t.settle();
    REQUIRE(result.ok());
    CHECK(*result == 1);
    CHECK(is_all(t.own(), 1));
  }
}

TEST_CASE("tensor parts: a sum of different ranks here and there is an error for all that know of it") {
  Parted t(Rank{2}, true, false);
  t.begin(RoundCall::reduce_scatter(Operation::sum));
  t.answer(3, 5, 3, false);
  t.end(0, 2);
  SECTION("known") { t.end(1, 3); }
  SECTION("known of some") { t.end(1, 0); }
  t.end(2, 0);
  const auto result = t.settle();
  REQUIRE_FALSE(result.ok());
  CHECK_THAT(result.error().message, Catch::Contains("partitions of the sum hold 3 ranks, others 2"));
}

TEST_CASE("tensor parts: a rank gives its part, and takes those of the others") {
  const Rank self{GENERATE(0u, 1u, 2u)};
  const bool retain = GENERATE(true, false), in_place = GENERATE(true, false),
             is_lent = GENERATE(true, false);
  Parted t(self, retain, in_place);
  t.whole = floats(kElements, -1);
  const Bytes given = floats(t.own_bytes() / sizeof(float), static_cast<float>(self.value));
  std::ranges::copy(given, t.own().begin());
  t.begin(RoundCall::all_gather());
  const std::size_t own[4] = {self == Rank{0} ? kSlice : 0, self == Rank{0} ? 304u : 0,
                              self == Rank{1} ? kSlice : 0,
                              self == Rank{0}   ? 0
                              : self == Rank{1} ? 304u
                                                : 40u};
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(t.at(i).cost == own[i]);
  for (std::size_t i = 0; i < 3; ++i) {
    if (own[i] > 0) {
      t.end(i, 1);
    } else {
      t.answer(i, i < 2 ? 0.0f : 1.0f, 1, is_lent);
    }
  }
  // Of both: the answer is not all of one value, but who takes it does not look.
  t.answer(3, 1, 1, is_lent);
  const auto result = t.settle();
  REQUIRE(result.ok());
  CHECK(*result == 1);
  CHECK(is_all(std::span(t.whole).first(4400), 0));
  CHECK(is_all(std::span(t.whole).subspan(4400), 1));
}

TEST_CASE("tensor parts: what is kept stays what it is when the tensor joins a group of one") {
  Parted t(Rank{0}, true, false);
  Request request;
  request.in.bytes = t.whole;
  Bytes out = floats(kElements, 0);
  request.out.bytes = out;
  request.done = [](const Result<std::uint32_t>&) {};
  REQUIRE(t.state.begin(std::move(request)).ok());
  for (std::size_t i = 0; i < 4; ++i) {
    t.send(t.at(i));
    t.answer(i, static_cast<float>(10 + i), 3, false);
  }
  REQUIRE(t.settle().ok());
  const std::uint64_t bytes = AnswerMemory::share_bytes(t.state.partitioner(), t.state.partitions(), 1, 0);
  Bytes sums(bytes), answers(bytes);
  const std::vector<Rank> ranks{Rank{0}};
  t.state.join_group({.size = 1, .rank = 0, .ranks = ranks, .sums = sums.data(), .answers = answers.data()});
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(is_all(t.state.retained(t.at(i), {{}, Round{0}}).bytes, static_cast<float>(10 + i)));
}

}  // namespace bps::tensor_parts_test

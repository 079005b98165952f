// Partitions of tensors in mode slot, whose slots come from the job's pool.
#include <deque>

#include "server/testing/aggregator_harness.h"

namespace bps::pooled_slots_test {
namespace {

using Kind = Action::Kind;

constexpr std::size_t kBytes = Bench::kElements * sizeof(float);

// A partition of `n` ranks, in a pool of one slot.
struct Slots : Bench {
  explicit Slots(std::uint32_t n, std::size_t budget_bytes = 1 << 20) : Bench(n, budget_bytes, Mode::slot) {}

  RoundPool& pool() { return pools.calls->pool; }
  // Nobody has it.
  bool is_free() {
    RoundPool::Claim claim(pools.calls->reserve, pools, kBytes);
    return claim.take(true);
  }
  // What is served is told to the partition.
  void serve() {
    const int told = pools.told;
    pool().serve();
    actions.clear();
    if (pools.told > told) aggregator->on_memory(actions);
  }
  void store_all(std::uint64_t round) {
    for (std::uint32_t rank = 0; rank < contributors.size(); ++rank)
      stored(rank, round);
  }
};

TEST_CASE("pooled slot: a round has memory from its last header on, until all have stored its answer") {
  Slots bench(2, /*budget_bytes=*/GENERATE(0, 1 << 20));
  const bool has_room = bench.budget.limit_bytes() > 0;
  CHECK(bench.is_free());
  bench.push(0, 0, 1);
  CHECK(bench.said() == (has_room ? "" : "0 not_ready 0"));
  CHECK(bench.is_free());
  bench.push(1, 0, 2);
  if (!has_room) {
    CHECK(bench.said() == "1 not_ready 0, 0 clear_to_send 0");
    bench.push(0, 0, 1);
    CHECK(bench.said() == "1 clear_to_send 0");
    bench.push(1, 0, 2);
  }
  REQUIRE(bench.said() == "0 answer 0, 1 answer 0");
  CHECK(first_element(bench.actions[0]) == 3.0f);
  const Actions answers = bench.actions;
  bench.stored(0, 0);
  CHECK_FALSE(bench.is_free());
  SECTION("the last Stored comes when nobody reads it any more") {
    for (const Action& answer : answers)
      bench.unpin(answer);
    CHECK_FALSE(bench.is_free());
    bench.stored(1, 0);
  }
  SECTION("or before") {
    bench.stored(1, 0);
    CHECK_FALSE(bench.is_free());
    for (const Action& answer : answers)
      bench.unpin(answer);
  }
  SECTION("the next round says as much") {
    for (const Action& answer : answers)
      bench.unpin(answer);
    bench.request_to_send(1, 1);
  }
  SECTION("who is lost stores nothing") {
    for (const Action& answer : answers)
      bench.unpin(answer);
    bench.die(1);
  }
  CHECK(bench.is_free());
}

TEST_CASE("pooled slot: what was stored by all is not answered again") {
  Slots bench(2);
  bench.push(0, 0, 1);
  bench.push(1, 0, 2);
  bench.unpin_all();
  bench.store_all(0);
  bench.lose(0);
  bench.push(0, 0, 1);
  REQUIRE(bench.said() == "0 answer 0");
  CHECK(bench.actions[0].payload.bytes.empty());
  CHECK(bench.is_free());
}

TEST_CASE("pooled slot: a round without elements needs no memory") {
  Slots bench(2);
  PushPull header = bench.header(0, 0);
  header.count = 0;
  for (const std::uint32_t rank : {0u, 1u}) {
    bench.begin(rank, header, 0, 0);
    bench.end(rank);
  }
  CHECK(bench.said() == "0 answer 0, 1 answer 0");
  CHECK(bench.is_free());
}

TEST_CASE("pooled slot: what is read for longer than a round comes back in the middle of a later one") {
  Slots bench(2);
  bench.push(0, 0, 1);
  bench.push(1, 0, 2);
  const Actions answers = bench.actions;
  bench.unpin(answers[0]);
  bench.store_all(0);
  // Rounds without elements, which take none.
  const std::size_t frames = GENERATE(2, 3, 4);
  for (std::size_t i = 0; i < frames; ++i) {
    const auto rank = static_cast<std::uint32_t>(i % 2);
    PushPull header = bench.header(rank, 1 + i / 2);
    header.count = 0;
    bench.begin(rank, header, 0, 0);
    bench.end(rank);
  }
  CHECK_FALSE(bench.is_free());
  bench.unpin(answers[1]);
  CHECK(bench.is_free());
}

TEST_CASE("pooled slot: memory comes back however a round ends") {
  Slots bench(2);
  bench.push(0, 0, 1);
  const bool is_announced = GENERATE(false, true);
  if (is_announced) {
    bench.begin(1, bench.header(1, 0), 2);
    CHECK_FALSE(bench.is_free());
  }
  SECTION("it fails") {
    bench.lose(1);
    bench.aggregator->left(1, bench.actions);
    CHECK(bench.said() == "0 failed 0");
  }
  SECTION("the tensor is dropped") { bench.aggregator->let_go(); }
  SECTION("the partition is gone") { bench.aggregator.reset(); }
  CHECK(bench.is_free());
  CHECK(bench.pool().waiting() == 0);
}

TEST_CASE("pooled slot: an answer that somebody still lacks is let go with the tensor") {
  Slots bench(2);
  bench.push(0, 0, 1);
  bench.push(1, 0, 2);
  const bool is_read = GENERATE(false, true);
  const Actions answers = bench.actions;
  if (!is_read) bench.unpin_all();
  bench.aggregator->let_go();
  CHECK(bench.is_free() == !is_read);
  bench.actions = answers;
  if (is_read) bench.unpin_all();
  CHECK(bench.is_free());
  bench.lose(0);
  bench.push(0, 0, 1);
  CHECK(bench.said() == "0 failed 0");
}

// Two partitions in one pool of one slot.
struct Two final : RoundPool::Owner {
  void on_memory() override {
    second->on_memory(actions);
    told = true;
  }
  Two() {
    PartitionShape shape = first.aggregator->shape();
    shape.partition = PartitionId{8};
    second = make_aggregator(shape, first.contributors, first.pools.memory(*this));
  }
  ~Two() { second.reset(); }
  void push_second(std::uint32_t rank, std::uint64_t round) {
    actions.clear();
    PushPull header = first.header(rank, round);
    header.partition = PartitionId{8};
    const Destination place = second->begin(rank, header, kBytes, actions);
    const std::vector<float> values(Bench::kElements, 5);
    const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
    if (place.kind == Destination::Kind::memory) std::memcpy(place.memory, bytes, kBytes);
    second->end(rank, place.kind == Destination::Kind::lane ? bytes : nullptr, actions);
  }
  std::string said() const {
    std::string text;
    for (const Action& action : actions)
      text += (text.empty() ? "" : ", ") + Bench::text_of(action);
    return text;
  }

  Slots first{2};
  std::unique_ptr<Aggregator> second;
  Actions actions;
  bool told = false;
};

TEST_CASE("pooled slot: two ranks that begin two rounds in opposite orders end both, one after the other") {
  Two both;
  both.first.push(0, 0, 1);
  both.push_second(1, 0);
  both.first.push(1, 0, 2);
  REQUIRE(both.first.said() == "0 answer 0, 1 answer 0");
  both.push_second(0, 0);  // announced as well, and waits
  CHECK(both.said().empty());
  both.first.unpin_all();
  both.first.store_all(0);
  both.first.pool().serve();
  CHECK(both.told);
  CHECK(both.said() == "0 answer 0, 1 answer 0");
}

TEST_CASE("pooled slot: an announced round overtakes those that wait for a program") {
  Slots bench(2);
  const PartitionShape shape = bench.aggregator->shape();
  const PushPull first = bench.header(0, 0);
  PushPull request = bench.header(1, 0);
  request.rendezvous = true;
  bench.aggregator.reset();
  const std::uint64_t block = BufferPool::class_bytes(kBytes);
  bench.pools.add_calls(kBytes, 4 * block);
  std::deque<std::unique_ptr<Aggregator>> all;
  for (int i = 0; i < 6; ++i)
    all.push_back(make_aggregator(shape, bench.contributors, bench.pools.memory()));
  Actions actions;
  // Three quarters are for any round.
  for (std::size_t i = 0; i < 4; ++i)
    all[i]->begin(0, first, kBytes, actions);
  CHECK(bench.pool().shared_in_use() == 3 * block);
  CHECK(bench.pool().waiting() == 1);
  for (std::size_t i = 4; i < 6; ++i) {  // one has the last quarter, the other one the reserve
    all[i]->begin(1, request, 0, actions);
    all[i]->end(1, nullptr, actions);
    all[i]->begin(0, first, kBytes, actions);
  }
  CHECK(bench.pool().shared_in_use() == 4 * block);
  CHECK(bench.pool().waiting() == 1);
  CHECK_FALSE(bench.is_free());
  all.clear();
  CHECK(bench.pool().shared_in_use() == 0);
  CHECK(bench.is_free());
}

TEST_CASE("pooled slot: the last result of a partition that moved is fetched when there is memory for it") {
  Slots bench(2);
  bench.move_here();
  RoundPool::Claim other(bench.pools.calls->reserve, bench.pools, kBytes);
  REQUIRE(other.take(true));
  bench.resume_all({3, 4});
  CHECK(bench.said().empty());
  Retained early;
  early.round = Round{3};
  early.weight = 2;
  CHECK(bench.aggregator->begin_retained(1, early, kBytes).kind == Destination::Kind::drop);  // not asked
  SECTION("who has it may be another one then") {
    bench.lose(1);
    CHECK(bench.said().empty());
    bench.resume(1, 4);
  }
  SECTION("or nobody any more") {
    bench.die(1);
    CHECK(bench.said() == "0 resumed 3");
    CHECK(bench.pool().waiting() == 0);
    return;
  }
  SECTION("or the tensor is dropped") {
    bench.aggregator->let_go();
    CHECK(bench.pool().waiting() == 0);
    return;
  }
  other.give_back();
  bench.serve();
  CHECK(bench.said() == "1 fetch 3");
  const Destination place = bench.aggregator->begin_retained(1, early, kBytes);
  REQUIRE(place.kind == Destination::Kind::memory);
  std::memset(place.memory, 0, kBytes);
  bench.actions.clear();
  bench.aggregator->end_retained(1, bench.actions);
  CHECK_FALSE(bench.is_free());
  CHECK(bench.said() == "0 resumed 4, 0 answer 3, 1 resumed 4");
  bench.unpin_all();
  bench.stored(0, 3);
  CHECK(bench.is_free());
}

TEST_CASE("pooled slot: a root gives a broadcast again when there is memory for it") {
  Slots bench(3);
  bench.move_here();
  RoundPool::Claim other(bench.pools.calls->reserve, bench.pools, kBytes);
  REQUIRE(other.take(true));
  const RoundCall call = RoundCall::broadcast(Rank{0});
  bench.resume(0, 3);  // the root waits for rank 1
  bench.resume(1, 3);
  bench.resume(2, 4, /*kept=*/false);
  CHECK(bench.said() == "0 resumed 4, 1 resumed 4, 2 resumed 4");
  const bool is_asked = GENERATE(false, true);
  if (is_asked) {
    PushPull request = bench.header(0, 3, call);
    request.rendezvous = true;
    bench.begin(0, request, 0, 0);
    bench.end(0);
    CHECK(bench.said().empty());
  } else {
    bench.push(0, 3, 7, call);
    CHECK(bench.said() == "0 not_ready 3");
  }
  bench.push(1, 3, 0, call);
  CHECK(bench.said().empty());
  SECTION("it is lost while it waits, and returns") {
    bench.lose(0);
    other.give_back();
    bench.serve();
    CHECK(bench.said().empty());
  }
  SECTION("it is asked when its turn comes") {
    other.give_back();
    bench.serve();
    CHECK(bench.said() == "0 clear_to_send 3");
  }
  SECTION("who lacks it dies before") {
    bench.die(1);
    CHECK(bench.said() == "0 answer 3");
    CHECK(bench.pool().waiting() == 0);
    return;
  }
  SECTION("it dies") {
    bench.die(0);
    CHECK(bench.said() == "1 failed 3");
    CHECK(bench.pool().waiting() == 0);
    return;
  }
  bench.push(0, 3, 7, call);
  REQUIRE(bench.said() == "1 answer 3");
  CHECK(first_element(bench.actions[0]) == 7.0f);
  bench.unpin_all();
  bench.stored(1, 3);
  CHECK(bench.said() == "0 answer 3");
  CHECK(bench.is_free());
}

}  // namespace
}  // namespace bps::pooled_slots_test

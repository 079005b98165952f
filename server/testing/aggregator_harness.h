// One aggregator under test, and the lanes' side of it.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/aggregate/aggregator.h"

namespace bps {

inline std::vector<Contributor> ranks(std::uint32_t n) {
  std::vector<Contributor> result;
  for (std::uint32_t i = 0; i < n; ++i) {
    result.push_back({Rank{i}, 1});
  }
  return result;
}

// The pools of a shard, and the memory that partitions of one job share.
struct TestPools final : RoundPool::Owner {
  // `shared_bytes`: of accumulators, besides the reserve, which has room for `widest` bytes.
  explicit TestPools(std::uint64_t budget_bytes = 1 << 20, std::uint64_t shared_bytes = 1 << 20,
                     std::size_t widest = 1 << 10)
      : budget(budget_bytes),
        accumulators(wide, shared_bytes, [this] { woken = true; }),
        reserve(accumulators) {
    reserve.replace(accumulators.memory().allocate(widest));
  }
  void on_memory() override { ++told; }
  // In a turn of its own, if the pool has asked for it.
  void serve() {
    if (std::exchange(woken, false)) accumulators.serve();
    if (calls != nullptr && std::exchange(calls->woken, false)) calls->pool.serve();
  }
  // For tensors in mode slot, of which the largest partition has so many bytes.
  void add_calls(std::size_t largest, std::uint64_t shared) {
    calls = std::make_unique<Calls>(slots, shared);
    calls->reserve.replace(slots.allocate(largest));
  }

  AggregatorMemory memory() { return memory(*this); }
  AggregatorMemory memory(RoundPool::Owner& owner) {
    return AggregatorMemory{slots, budget, reserve, owner, calls != nullptr ? &calls->reserve : nullptr};
  }

  struct Calls {
    Calls(BufferPool& memory, std::uint64_t shared)
        : pool(memory, shared, [this] { woken = true; }), reserve(pool) {}
    bool woken = false;
    RoundPool pool;
    RoundPool::Reserve reserve;
  };

  BufferPool slots;
  BufferPool budget;
  BufferPool wide;
  RoundPool accumulators;
  RoundPool::Reserve reserve;
  std::unique_ptr<Calls> calls;
  int told = 0;
  bool woken = false;
};

// With its own memory from the pool for slots.
inline std::unique_ptr<Aggregator> make_aggregator(const PartitionShape& shape,
                                                   std::span<const Contributor> contributors,
                                                   AggregatorMemory memory) {
  auto own = take_memory(memory.slots, shape.dtype, shape.elements, shape.mode);
  REQUIRE(own);
  return Aggregator::create(shape, contributors, memory, std::move(*own));
}

// Memory of a worker that the aggregator may read. Rubbish once it is given back or withdrawn.
class TestLoan final : public LentPayload::Lender {
 public:
  TestLoan(std::vector<std::byte> bytes, bool treacherous)
      : memory_(std::move(bytes)), treacherous_(treacherous) {}
  ~TestLoan() override { CHECK(given_back_); }
  void give_back(std::uint64_t) override {
    CHECK_FALSE(given_back_);
    given_back_ = true;
    std::fill(memory_.begin(), memory_.end(), std::byte{0xDD});
  }
  bool intact() const override {
    CHECK_FALSE(given_back_);
    if (!treacherous_ || withdrawn_) return !withdrawn_;
    withdraw();  // just after it was looked at
    return true;
  }
  void withdraw() const {
    withdrawn_ = true;
    std::fill(memory_.begin(), memory_.end(), std::byte{0xEE});
  }
  std::span<const std::byte> bytes() const { return memory_; }
  bool given_back() const { return given_back_; }
  bool withdrawn() const { return withdrawn_; }

 private:
  mutable std::vector<std::byte> memory_;
  const bool treacherous_;
  mutable bool withdrawn_ = false;
  bool given_back_ = false;
};

// An aggregator of n ranks with f32 elements, and the lanes' buffers.
class Bench {
 public:
  explicit Bench(std::uint32_t n, std::size_t budget_bytes = 1 << 20, Mode mode = Mode::sync,
                 std::uint32_t staleness = kUnboundedStaleness)
      : contributors(ranks(n)), pools(budget_bytes), lanes(n), places(n), values(n) {
    PartitionShape shape;
    shape.partition = PartitionId{7};
    shape.tensor = "layer1.weight";
    shape.elements = kElements;
    shape.mode = mode;
    shape.staleness = staleness;
    if (mode == Mode::slot) pools.add_calls(shape.raw_bytes(), 0);
    recreate(shape);
  }

  // Another one in its place, of the same contributors. The shape may be that of the present one.
  void recreate(PartitionShape shape) {
    aggregator.reset();
    aggregator = make_aggregator(shape, contributors, pools.memory());
  }
  // It was with another server before.
  void move_here() {
    PartitionShape shape = aggregator->shape();
    shape.moved = true;
    recreate(shape);
  }

  PushPull header(std::uint32_t rank, std::uint64_t round, const RoundCall& call = {}) const {
    PushPull header;
    header.partition = PartitionId{7};
    header.round = Round{round};
    header.call = call;
    header.dtype = aggregator->shape().dtype;
    header.count = aggregator->shape().begin + aggregator->shape().elements;
    header.weight = contributors[rank].weight;
    return header;
  }

  Destination::Kind begin(std::uint32_t rank, const PushPull& header, float value) {
    const RoundCall call = aggregator->shape().in_partition(header.call);
    const bool gives = call.gives(call.root == contributors[rank].rank);
    return begin(rank, header, value, gives ? kElements * sizeof(float) : 0);
  }

  Destination::Kind begin(std::uint32_t rank, const PushPull& header, float value, std::uint64_t bytes) {
    actions.clear();
    lanes[rank].assign(kElements, -1.0f);
    values[rank].assign(kElements, value);
    places[rank] = aggregator->begin(rank, header, bytes, actions);
    return places[rank].kind;
  }

  void end(std::uint32_t rank) {
    actions.clear();
    const std::byte* lane = nullptr;
    if (places[rank].kind == Destination::Kind::memory) {
      std::memcpy(places[rank].memory, values[rank].data(), kElements * sizeof(float));
    } else if (places[rank].kind == Destination::Kind::lane) {
      lanes[rank] = values[rank];
      lane = reinterpret_cast<const std::byte*>(lanes[rank].data());
    }
    aggregator->end(rank, lane, actions);
  }

  // A whole contribution at once.
  void push(std::uint32_t rank, std::uint64_t round, float value, const RoundCall& call = {}) {
    begin(rank, header(rank, round, call), value);
    Actions first = std::move(actions);
    end(rank);
    first.insert(first.end(), actions.begin(), actions.end());
    actions = std::move(first);
  }

  void request_to_send(std::uint32_t rank, std::uint64_t round) {
    PushPull request = header(rank, round);
    request.rendezvous = true;
    CHECK(begin(rank, request, 0, 0) == Destination::Kind::drop);
    Actions first = std::move(actions);
    end(rank);
    actions.insert(actions.begin(), first.begin(), first.end());
  }

  // Lends a whole contribution. True: it was taken.
  bool lend(std::uint32_t rank, std::uint64_t round, float value, bool scarce = false,
            bool treacherous = false, const RoundCall& call = {}) {
    actions.clear();
    const std::vector<float> content(kElements, value);
    const auto bytes = std::as_bytes(std::span(content));
    loans[rank] = std::make_shared<TestLoan>(std::vector<std::byte>(bytes.begin(), bytes.end()), treacherous);
    LentPayload payload(loans[rank], 0, loans[rank]->bytes(), scarce);
    return aggregator->lend(rank, header(rank, round, call), payload, actions);
  }

  void resume(std::uint32_t rank, std::uint64_t round, bool kept = true) {
    actions.clear();
    StoredRounds stored{{}, Round{round}};
    stored.kept = kept;
    aggregator->resume(rank, stored, actions);
  }
  void stored(std::uint32_t rank, std::uint64_t round) {
    actions.clear();
    aggregator->stored(rank, Round{round}, actions);
  }
  // Lost for good.
  void die(std::uint32_t rank) {
    lose(rank);
    contributors[rank].loss = "it is gone";
    aggregator->died(rank, actions);
  }
  // From rank 0 on. What the last one leads to is in `actions`.
  void resume_all(std::initializer_list<std::uint64_t> rounds) {
    for (std::uint32_t rank = 0; const std::uint64_t round : rounds)
      resume(rank++, round);
  }

  void lose(std::uint32_t rank) {
    actions.clear();
    aggregator->lost(rank, actions);
  }

  void unpin(const Action& action) {
    Actions more;
    aggregator->unpin(action.pin, more);
    for (auto& next : more) {
      actions.push_back(next);
    }
  }

  // Of all that was answered last.
  void unpin_all() {
    for (const Action& action : Actions(actions))
      if (action.pin != Action::kNoPin) unpin(action);
  }

  // "0 resumed 5, 1 answer 4"
  std::string said() const {
    std::string text;
    for (const Action& action : actions)
      text += (text.empty() ? "" : ", ") + text_of(action);
    return text;
  }
  static std::string text_of(const Action& action) {
    constexpr const char* names[] = {"answer", "not_ready", "clear_to_send", "failed", "resumed", "fetch"};
    return std::to_string(action.contributor) + " " + names[static_cast<std::size_t>(action.kind)] + " " +
           std::to_string(action.round.value);
  }

  static constexpr std::size_t kElements = 5;
  std::vector<Contributor> contributors;
  TestPools pools;
  BufferPool& slots = pools.slots;
  BufferPool& budget = pools.budget;
  std::unique_ptr<Aggregator> aggregator;
  std::vector<std::vector<float>> lanes;
  std::vector<Destination> places;
  std::vector<std::vector<float>> values;
  std::vector<std::shared_ptr<TestLoan>> loans = std::vector<std::shared_ptr<TestLoan>>(contributors.size());
  Actions actions;
};

inline float first_element(const Action& action) {
  REQUIRE(action.payload.bytes.size() == Bench::kElements * sizeof(float));
  float value = 0;
  std::memcpy(&value, action.payload.bytes.data(), sizeof(float));
  return value;
}

}  // namespace bps

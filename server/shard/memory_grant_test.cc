#include "server/shard/memory_grant.h"

#include <algorithm>
#include <catch2/catch.hpp>

namespace bps::memory_grant_test {
namespace {

using State = MemoryGrant::State;

constexpr std::uint64_t kMiB = 1 << 20;

// One f32 tensor whose partitions have a MiB each.
DeclareSlices megabytes(std::uint32_t partitions, Mode mode = Mode::sync) {
  DeclareSlices declare;
  declare.tensors.emplace_back().mode = mode;
  for (std::uint32_t i = 0; i < partitions; ++i)
    declare.tensors.back().partitions.push_back({PartitionId{i}, 0, kMiB / sizeof(float)});
  declare.tensors.emplace_back();  // without elements
  return declare;
}

struct Pools {
  MemoryGrant grant(const DeclareSlices& declare, MemoryGrant::Shared shared = {}) {
    return {{slots, arrivals, accumulators}, false, declare, shared};
  }
  BufferPool slots;
  BufferPool arrivals;
  BufferPool accumulators;
};

TEST_CASE("memory grant: a slot of each partition and a buffer of each lane, by steps") {
  Pools pools;
  MemoryGrant grant = pools.grant(megabytes(9), {3});
  std::uint64_t before = 0;
  std::size_t steps = 1;
  while (grant.step() == State::more) {
    const std::uint64_t taken = pools.slots.bytes_in_use() + pools.arrivals.bytes_in_use();
    CHECK(taken > before);
    CHECK(taken - before <= MemoryGrant::kStepBytes);
    before = taken;
    REQUIRE(++steps < 100);
  }
  CHECK(steps >= 6);
  CHECK(pools.slots.bytes_in_use() == 9 * kMiB);
  CHECK(pools.arrivals.bytes_in_use() == 3 * kMiB);
  CHECK(grant.parts().size() == 9);
  CHECK(grant.lanes().free.size() == 3);
  CHECK(grant.lanes().bytes == kMiB);
}

TEST_CASE("memory grant: an asynchronous partition has its value and its snapshot") {
  Pools pools;
  MemoryGrant grant = pools.grant(megabytes(1, Mode::async));
  CHECK(grant.step() == State::more);
  CHECK(grant.step() == State::complete);
  CHECK(pools.slots.bytes_in_use() == 2 * kMiB);
}

TEST_CASE("memory grant: lanes with large enough buffers get no other ones") {
  Pools pools;
  MemoryGrant grant = pools.grant(megabytes(1), {3, kMiB});
  CHECK(grant.step() == State::complete);
  CHECK(grant.lanes().bytes == 0);
  CHECK(pools.arrivals.bytes_in_use() == 0);
}

TEST_CASE("memory grant: of tensors in mode slot one buffer, if that before is too small") {
  Pools pools;
  MemoryGrant::Shared shared;
  SECTION("none before") { shared.slot_bytes = 0; }
  SECTION("too small") { shared.slot_bytes = kMiB - 1; }
  SECTION("large enough") { shared.slot_bytes = kMiB; }
  const bool needs = shared.slot_bytes < kMiB;
  SECTION("if the system has none, it is refused") {
    pools.slots.set_limit(kMiB - 1);
    MemoryGrant grant = pools.grant(megabytes(9, Mode::slot), shared);
    CHECK(grant.step() == State::refused);
    CHECK(grant.error().message == "the system gave 0 bytes of the 1.0 MiB that they need from the start");
    return;
  }
  MemoryGrant grant = pools.grant(megabytes(9, Mode::slot), shared);
  while (grant.step() == State::more) {}
  CHECK(pools.slots.bytes_in_use() == (needs ? kMiB : 0));
  CHECK(grant.slot().size() == (needs ? kMiB : 0));
  CHECK(grant.parts().size() == 9);
}

TEST_CASE("memory grant: accumulators of the largest partition, if those before are too small") {
  Pools pools;
  DeclareSlices declare = megabytes(2);
  declare.tensors[0].dtype = DType::bf16;  // half a MiB each
  MemoryGrant::Shared shared;
  SECTION("none before") { shared.accumulator_bytes = 0; }
  SECTION("too small") { shared.accumulator_bytes = kMiB - 1; }
  SECTION("large enough") { shared.accumulator_bytes = kMiB; }
  SECTION("asynchronous tensors have their own") { declare.tensors[0].mode = Mode::async; }
  const bool needs = declare.tensors[0].mode == Mode::sync && shared.accumulator_bytes < kMiB;
  SECTION("if the system has none, all goes back") {
    pools.accumulators.set_limit(kMiB - 1);
    MemoryGrant grant = pools.grant(declare, shared);
    CHECK(grant.step() == State::refused);
    CHECK(grant.error().message == "the system gave 0 bytes of the 2.0 MiB that they need from the start");
    return;
  }
  MemoryGrant grant = pools.grant(declare, shared);
  while (grant.step() == State::more) {}
  CHECK(pools.accumulators.bytes_in_use() == (needs ? kMiB : 0));
  CHECK(grant.accumulators().size() == (needs ? kMiB : 0));
}

TEST_CASE("memory grant: what is a little larger than before and of the same size class takes nothing anew") {
  constexpr std::uint64_t kClass = 256 << 10;
  Pools pools;
  DeclareSlices declare = megabytes(1);
  declare.tensors[0].dtype = DType::bf16;
  const auto add = [&](std::uint64_t kibibytes, MemoryGrant::Shared shared) {
    declare.tensors[0].partitions[0].elements = kibibytes * 1024 / 2;
    MemoryGrant grant = pools.grant(declare, shared);
    while (grant.step() == State::more) {}
    shared.lane_bytes = std::max(shared.lane_bytes, grant.lanes().bytes);
    shared.accumulator_bytes = std::max(shared.accumulator_bytes, grant.accumulators().size());
    CHECK(shared.lane_bytes == kClass);
    CHECK(shared.accumulator_bytes == 2 * kClass);
    CHECK(grant.lanes().free.size() + (grant.accumulators() ? 1 : 0) == (kibibytes == 250 ? 4 : 0));
    return shared;
  };
  add(252, add(250, {3}));
}

TEST_CASE("memory grant: memory that is back is found, whatever the pool was refused before") {
  bool is_there = false;
  BufferPool slots(UINT64_MAX, [&](std::size_t bytes) -> Result<std::shared_ptr<Region>> {
    if (!is_there) return make_error(ErrorCode::out_of_memory, "none");
    return allocate_ordinary_region(bytes);
  });
  BufferPool arrivals;
  BufferPool accumulators;
  for (int i = 0; i < 10; ++i)
    CHECK_FALSE(slots.allocate(kMiB));
  is_there = true;
  const DeclareSlices declare = megabytes(1);
  MemoryGrant grant({slots, arrivals, accumulators}, false, declare, {3, kMiB});
  CHECK(grant.step() == State::complete);
}

TEST_CASE("memory grant: nothing declared is complete at once") {
  Pools pools;
  CHECK(pools.grant(DeclareSlices{}, {3}).step() == State::complete);
}

TEST_CASE(
    "memory grant: if the system has too little, all goes back, and the error says how much there was") {
  Pools pools;
  std::uint64_t there = 0;
  SECTION("for partitions") { pools.slots.set_limit(there = 4 * kMiB); }
  SECTION("for lanes") { pools.arrivals.set_limit(there = 2 * kMiB); }
  MemoryGrant grant = pools.grant(megabytes(9), {3});
  State state = State::more;
  for (std::size_t steps = 0; state == State::more; ++steps) {
    REQUIRE(steps < 100);
    state = grant.step();
  }
  REQUIRE(state == State::refused);
  CHECK(pools.slots.bytes_in_use() + pools.slots.bytes_held() == 0);
  CHECK(pools.arrivals.bytes_in_use() + pools.arrivals.bytes_held() == 0);
  CHECK(grant.error().code == ErrorCode::out_of_memory);
  CHECK(grant.error().message ==
        (there == 2 * kMiB ? "the system gave 2.0 MiB of the 12.0 MiB that they need from the start"
                           : "the system gave 7.0 MiB of the 12.0 MiB that they need from the start"));
}

}  // namespace
}  // namespace bps::memory_grant_test

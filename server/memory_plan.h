// How a server divides its memory between tensors, reorder budgets and accumulators, and what helps when
// tensors do not fit.
//
// The problem: the reorder budgets grow along with memory_max, so a tensor that lacks 3 MiB needs up to 4 MiB
// more. And beyond what the machine, the control group or ulimit allows, a larger memory_max helps nobody.
//
// Pure.
#pragma once

#include <cstdint>
#include <string>

#include "proto/base/memory/memory_bounds.h"
#include "server/aggregate/round_pool.h"

namespace bps {

// What all jobs together may have now, because of the system.
struct MemoryRoom {
  std::uint64_t bytes = UINT64_MAX;
  MemoryBound left;  // in the system, kKeptFree included

  // Of what the system has left, for the program itself: connections, messages.
  static constexpr std::uint64_t kKeptFree = 32 << 20;
  // `taken`: what the server holds.
  static MemoryRoom of(std::uint64_t taken, const MemoryBound& left);
};

struct MemoryPlan {
  std::uint64_t memory_max = 0;  // tensors, lanes, reorder budgets and accumulators together
  // Of each shard, if those of all shards and the accumulators that go with them are at most a quarter of
  // memory_max.
  std::uint64_t reorder_budget = 0;
  std::uint32_t shards = 1;
  MemoryBound limit = {};         // what memory_max must stay below, see default_memory_max()
  bool embedded = false;          // in the process of a worker, which has no setting for memory_max
  std::uint64_t call_memory = 0;  // of each job that has tensors in mode slot, on all shards together

  std::uint64_t call_memory_per_shard() const { return call_memory / shards; }
  std::uint64_t budget_per_shard() const;
  std::uint64_t accumulators_per_shard() const { return RoundPool::shared_for(budget_per_shard()); }
  std::uint64_t for_tensors() const {
    return memory_max - (budget_per_shard() + accumulators_per_shard()) * shards;
  }

  // For people, if `bytes` for tensors are more than for_tensors() or `room`: who does what it says, and
  // declares the same again, has enough. Sizes in it are those that settings take.
  std::string advice(std::uint64_t bytes, const MemoryRoom& room) const;
};

// Of what the limit allows (see default_memory_max()), the part of an embedded server: the program needs the
// other half for its own copies.
std::uint64_t embedded_memory_max(const MemoryBound& limit);

}  // namespace bps

// Distinct integer types for things that must not be mixed. `Rank{3}` is not a `ServerId{3}`; use
// `.value` where the number itself is wanted (logs, wire).
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace bps {

template <class Tag, class Rep>
struct Id {
  using rep = Rep;
  Rep value{};

  constexpr Id() = default;
  constexpr explicit Id(Rep v) : value(v) {}
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
  constexpr Id next() const { return Id(static_cast<Rep>(value + 1)); }
};

using Rank = Id<struct RankTag, std::uint32_t>;          // worker within its job, 0..world_size-1
using ServerId = Id<struct ServerIdTag, std::uint32_t>;  // issued by the scheduler, never reused in a term
using ShardIndex = Id<struct ShardTag, std::uint32_t>;   // thread of a server, 0..shards-1
using LaneIndex = Id<struct LaneTag, std::uint32_t>;     // index into a job's lane table: one (server, shard)
using TensorId = Id<struct TensorTag, std::uint32_t>;    // within a job run, in order of first declaration
using PartitionId = Id<struct PartitionTag, std::uint32_t>;  // within a job run, through all tensors
using Round = Id<struct RoundTag, std::uint64_t>;            // per tensor, counts push_pulls from 0
using JobRun = Id<struct JobRunTag, std::uint64_t>;          // one run of a job; random, never 0 once issued
using Incarnation = Id<struct IncarnationTag, std::uint64_t>;  // one life of a process; 0 = not yet issued
using Session = Id<struct SessionTag, std::uint64_t>;          // per lane, grows with each reconnect
using Epoch = Id<struct EpochTag, std::uint32_t>;              // version of a job's placement
using Generation = Id<struct GenerationTag, std::uint32_t>;    // version of a job's set of live workers

// One life of the scheduler. A higher number wins; equal numbers with different ids are a conflict.
struct Term {
  std::uint64_t number = 0;
  std::uint64_t id = 0;
  friend constexpr auto operator<=>(const Term&, const Term&) = default;
};

}  // namespace bps

template <class Tag, class Rep>
struct std::hash<bps::Id<Tag, Rep>> {
  std::size_t operator()(const bps::Id<Tag, Rep>& id) const noexcept { return std::hash<Rep>{}(id.value); }
};

// What a declaration takes from the system on one shard before it is acknowledged: its partitions' own
// memory, and what partitions of a job share, if they are larger than those before: receive buffers of lanes,
// the reserves of accumulators and of slots.
//
// The problem: what is only promised may be gone when a round needs it, and that round may be another job's.
// So it is taken here, and who asks for too much is refused here. Filling memory with pages takes about 0.25
// s for each GB, so it goes by steps, between which the shard does its other work. Nothing of it is used
// before all of it is there; if the system has too little, all goes back.
//
// Owner: a ShardJob. Lives on: shard loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proto/base/error.h"
#include "proto/base/memory/buffer_pool.h"
#include "proto/wire/messages.h"
#include "server/aggregate/aggregator.h"

namespace bps {

// The receive buffers of a job's lanes.
struct LaneBuffers {
  std::size_t bytes = 0;  // of each: a size class, see BufferPool
  std::vector<BufferPool::Buffer> free;
};

class MemoryGrant {
 public:
  // Of the work of one step: about as long as it takes to receive and add a few partitions.
  static constexpr std::uint64_t kStepBytes = 2 << 20;

  // All outlive it.
  struct Pools {
    BufferPool& slots;
    BufferPool& arrivals;
    BufferPool& accumulators;
  };
  // What the job has now.
  struct Shared {
    std::size_t lanes = 0;              // that have a receive buffer,
    std::size_t lane_bytes = 0;         // of so many bytes
    std::size_t accumulator_bytes = 0;  // of the reserve
    std::size_t slot_bytes = 0;         // of the reserve for tensors in mode slot
  };
  // `pins`: both slots of a partition are reserved in the pool, because their memory takes long to make.
  MemoryGrant(const Pools& pools, bool pins, const DeclareSlices& declare, const Shared& shared);

  enum class State : std::uint8_t { more, complete, refused };
  State step();
  std::uint64_t bytes_left() const { return needed_ - taken_; }
  // refused: what the system has given, and what was needed.
  Error error() const;

  // complete:
  struct Part {
    SlotReservations reserved;  // none without `pins`
    PartitionMemory own;
  };
  const DeclareSlices& declare() const { return declare_; }
  std::vector<Part>& parts() { return parts_; }  // of all partitions, in the order of the declaration
  LaneBuffers& lanes() { return lanes_; }        // all of them; 0 bytes each: those before are large enough
  BufferPool::Buffer& accumulators() { return accumulators_.buffer; }  // none: likewise
  BufferPool::Buffer& slot() { return slot_.buffer; }                  // none: likewise

 private:
  // Of a job, to be taken.
  struct Reserve {
    std::size_t bytes = 0;
    BufferPool::Buffer buffer;
  };
  // False: the system has too little.
  bool take_next();
  bool take_reserve(BufferPool& pool, Reserve& reserve);
  bool take_lane_buffer();
  bool take_partition();
  State refuse();

  const Pools pools_;
  const std::uint64_t slots_before_;
  const std::uint64_t arrivals_before_;
  const std::uint64_t accumulators_before_;
  const bool pins_;
  const DeclareSlices declare_;
  std::size_t lanes_left_ = 0;
  std::size_t tensor_ = 0;     // the next one,
  std::size_t partition_ = 0;  // and of it
  std::uint64_t needed_ = 0;
  std::uint64_t taken_ = 0;
  LaneBuffers lanes_;
  Reserve accumulators_;
  Reserve slot_;
  std::vector<Part> parts_;
};

}  // namespace bps

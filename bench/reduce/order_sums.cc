#include "bench/reduce/order_sums.h"

#include <array>

#include "proto/base/assert.h"
#include "proto/reduce/reduce.h"

namespace bps::bench {
namespace {

std::vector<Contributor> contributors_of(std::uint32_t lanes) {
  std::vector<Contributor> out;
  for (std::uint32_t i = 0; i < lanes; ++i)
    out.push_back({Rank{i}, 1});
  return out;
}

class RankOrder final : public OrderSum {
 public:
  explicit RankOrder(const OrderShape& shape)
      : bytes_(shape.partition_bytes), contributors_(contributors_of(shape.lanes)), lanes_(shape.lanes) {
    for (std::uint32_t i = 0; i < shape.partitions; ++i) {
      PartitionShape partition;
      partition.partition = PartitionId{i};
      partition.tensor = "tensor";
      partition.elements = bytes_ / sizeof(float);
      partitions_.push_back({Aggregator::create(partition, contributors_, {slots_, budget_})});
    }
    for (auto& lane : lanes_)
      lane.buffer = slots_.allocate(bytes_);
  }

  std::byte* begin(std::uint32_t lane, std::uint32_t partition) override {
    PushPull header;
    header.partition = PartitionId{partition};
    header.round = partitions_[partition].round;
    header.operation = Operation::sum;
    header.weight = 1;
    actions_.clear();
    const Destination destination = partitions_[partition].aggregator->begin(lane, header, bytes_, actions_);
    lanes_[lane].in_lane = destination.kind == Destination::Kind::lane;
    return lanes_[lane].in_lane ? lanes_[lane].buffer.data() : destination.memory;
  }

  bool end(std::uint32_t lane, std::uint32_t partition) override {
    Partition& p = partitions_[partition];
    actions_.clear();
    p.aggregator->end(lane, lanes_[lane].in_lane ? lanes_[lane].buffer.data() : nullptr, actions_);
    if (actions_.empty()) return false;
    // Sent as soon as they are said.
    const std::size_t answers = actions_.size();
    for (std::size_t i = 0; i < answers; ++i) {
      BPS_ASSERT(actions_[i].kind == Action::Kind::answer);
      p.aggregate = actions_[i].payload.bytes.data();
      p.aggregator->unpin(actions_[i].pin, actions_);
    }
    p.round = p.round.next();
    return true;
  }

  const std::byte* aggregate(std::uint32_t partition) const override {
    return partitions_[partition].aggregate;
  }

 private:
  struct Partition {
    std::unique_ptr<Aggregator> aggregator;
    Round round = {};
    const std::byte* aggregate = nullptr;
  };
  struct Lane {
    BufferPool::Buffer buffer;
    bool in_lane = false;
  };

  std::size_t bytes_;
  BufferPool slots_;
  BufferPool budget_;
  std::vector<Contributor> contributors_;
  std::vector<Partition> partitions_;
  std::vector<Lane> lanes_;
  Actions actions_;
};

class ArrivalOrder final : public OrderSum {
 public:
  explicit ArrivalOrder(const OrderShape& shape)
      : bytes_(shape.partition_bytes),
        lane_count_(shape.lanes),
        partitions_(shape.partitions),
        lanes_(shape.lanes) {
    for (auto& lane : lanes_)
      lane.buffer = slots_.allocate(bytes_);
  }

  std::byte* begin(std::uint32_t lane, std::uint32_t partition) override {
    Partition& p = partitions_[partition];
    lanes_[lane].in_slot = p.begun++ == 0;
    if (p.begun == lane_count_) p.slots[(p.round + 1) % 2].reset();  // as the server does
    if (!lanes_[lane].in_slot) return lanes_[lane].buffer.data();
    Slot& slot = p.slots[p.round % 2];
    if (!slot) slot = slots_.allocate(bytes_);
    return slot.data();
  }

  bool end(std::uint32_t lane, std::uint32_t partition) override {
    Partition& p = partitions_[partition];
    std::byte* const slot = p.slots[p.round % 2].data();
    ++p.whole;
    if (lanes_[lane].in_slot) {
      p.slot_is_whole = true;
    } else if (!p.slot_is_whole) {
      // Ahead of the one that goes into the slot: waits, as it would in any order.
      p.waiting.push_back(std::move(lanes_[lane].buffer));
      lanes_[lane].buffer = slots_.allocate(bytes_);
      return false;
    }
    std::array<const std::byte*, 64> inputs;
    std::size_t n = 0;
    for (const Slot& waiting : p.waiting)
      inputs[n++] = waiting.data();
    if (!lanes_[lane].in_slot) inputs[n++] = lanes_[lane].buffer.data();
    reduce::accumulate(DType::f32, Operation::sum, slot, {inputs.data(), n}, bytes_ / sizeof(float));
    p.waiting.clear();
    if (p.whole < lane_count_) return false;
    p.begun = p.whole = 0;
    p.slot_is_whole = false;
    ++p.round;
    return true;
  }

  const std::byte* aggregate(std::uint32_t partition) const override {
    const Partition& p = partitions_[partition];
    return p.slots[(p.round + 1) % 2].data();
  }

 private:
  using Slot = BufferPool::Buffer;
  struct Partition {
    std::array<Slot, 2> slots;
    std::vector<Slot> waiting;
    std::uint32_t begun = 0;
    std::uint32_t whole = 0;
    bool slot_is_whole = false;
    std::uint64_t round = 0;
  };
  struct Lane {
    Slot buffer;
    bool in_slot = false;
  };

  std::size_t bytes_;
  std::uint32_t lane_count_;
  BufferPool slots_;
  std::vector<Partition> partitions_;
  std::vector<Lane> lanes_;
};

}  // namespace

std::unique_ptr<OrderSum> sum_in_rank_order(const OrderShape& shape) {
  return std::make_unique<RankOrder>(shape);
}

std::unique_ptr<OrderSum> sum_in_arrival_order(const OrderShape& shape) {
  return std::make_unique<ArrivalOrder>(shape);
}

}  // namespace bps::bench

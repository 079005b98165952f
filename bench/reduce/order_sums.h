// Two ways to sum the contributions of many partitions: the server's own aggregators, in rank order, and the
// same with the rule dropped, in the order of arrival, which exists here only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "proto/base/memory/buffer_pool.h"
#include "proto/base/result.h"
#include "server/aggregate/aggregator.h"

namespace bps::bench {

// f32 partitions of one size, summed over all lanes, round after round.
struct OrderShape {
  std::uint32_t lanes = 4;
  std::uint32_t partitions = 1;
  std::size_t partition_bytes = 0;
};

class OrderSum {
 public:
  virtual ~OrderSum() = default;

  // A lane's contribution to the partition begins: where it goes. Null: the server would refuse it.
  virtual std::byte* begin(std::uint32_t lane, std::uint32_t partition) = 0;
  // It is whole. True if the partition is complete with it.
  virtual bool end(std::uint32_t lane, std::uint32_t partition) = 0;
  // Of the partition's last complete round.
  virtual const std::byte* aggregate(std::uint32_t partition) const = 0;
};

std::unique_ptr<OrderSum> sum_in_rank_order(const OrderShape& shape);
std::unique_ptr<OrderSum> sum_in_arrival_order(const OrderShape& shape);

}  // namespace bps::bench

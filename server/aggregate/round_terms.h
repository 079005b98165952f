// What a round is: what its first contributor calls, and whether the others call the same.
//
// Owner: SyncAggregator, whose shape, contributors and errors it reads. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "proto/base/result.h"
#include "proto/wire/messages.h"
#include "server/aggregate/partition.h"
#include "server/aggregate/round_errors.h"

namespace bps {

class RoundTerms {
 public:
  // All outlive it.
  RoundTerms(const PartitionShape& shape, std::span<const Contributor> contributors,
             const RoundErrors& errors)
      : shape_(shape), contributors_(contributors), errors_(errors) {}

  // A round begins, with this header.
  void open(std::uint32_t contributor, const PushPull& header) {
    opener_ = contributor;
    call_ = header.call;
    count_ = header.count;
  }
  // Also of the header that it began with.
  Status agree(std::uint32_t contributor, const PushPull& header) const;

 private:
  const PartitionShape& shape_;
  const std::span<const Contributor> contributors_;
  const RoundErrors& errors_;
  std::uint32_t opener_ = 0;
  RoundCall call_;
  std::uint64_t count_ = 0;  // elements of the whole tensor
};

}  // namespace bps

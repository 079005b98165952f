// Why a round of a partition fails, in words: each error names the round, the tensor and the contributor, and
// says what to do.
//
// Owner: an aggregator, whose shape and contributors it reads. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "proto/base/error.h"
#include "server/aggregate/partition.h"

namespace bps {

class RoundErrors {
 public:
  // Both outlive it.
  RoundErrors(const PartitionShape& shape, std::span<const Contributor> contributors)
      : shape_(shape), contributors_(contributors) {}

  // It leaves by dropping the tensor.
  void note_dropped(std::uint32_t contributor);
  bool has_dropped(std::uint32_t contributor) const {
    return contributor < dropped_.size() && dropped_[contributor];
  }

  // "round 812 of layer1.weight (partition 17)"
  std::string describe(Round round) const;
  // Of a call on a group: "group 'world': call number 17". `number`: 0 if it is of a tensor.
  std::string describe(Round round, std::uint64_t number) const;
  std::string describe_rank(std::uint32_t contributor) const;

  Error length(std::uint32_t contributor, Round round, std::uint64_t bytes, std::uint64_t expected) const;
  Error weight(std::uint32_t contributor, Round round, std::uint32_t weight) const;
  // The round is neither the one that may be pushed now nor the one before it.
  Error order(std::uint32_t contributor, Round round, Round expected) const;
  // Two contributors call different things.
  Error differ(Round round, std::uint32_t one, const std::string& calls, std::uint32_t other,
               const std::string& other_calls) const;
  // A contributor that has not given its part has left. number: of a call without a name, or 0.
  Error left(std::uint32_t contributor, Round round, std::uint64_t number) const;
  // It takes the tensor's elements for something else.
  Error dtype(std::uint32_t contributor, Round round, DType dtype) const;
  // An asynchronous tensor has no such rounds.
  Error kind(std::uint32_t contributor, Round round, const RoundCall& call) const;
  // There is no such sum of the tensor's elements.
  Error type(std::uint32_t contributor, Round round, Operation operation) const;
  // The root of a broadcast is lost, and its bytes are not here; or that of a reduce. Or, of a call of parts,
  // the owner of one.
  Error root_lost(std::uint32_t root, const RoundCall& call, Round round) const;
  // Of a message; kNobody: it is no contributor.
  Error receiver_lost(std::uint32_t receiver, Round round) const;
  // The root of a broadcast has left before it pushed.
  Error root_left(std::uint32_t root, Round round) const;
  // Of a root that is no contributor.
  Error no_root(const RoundCall& call, Rank root, Round round) const;
  // Of a tensor that has none.
  Error no_parts(std::uint32_t contributor, Round round, const RoundCall& call) const;
  // A call of parts is always of the whole tensor.
  Error short_call(std::uint32_t contributor, Round round, const RoundCall& call, std::uint64_t count) const;
  // Its scale cannot be used: `why`.
  Error scale(std::uint32_t contributor, Round round, std::uint64_t number, const std::string& why) const;
  // Of an average of i64 whose sum does not fit i64.
  Error overflow(Round round, std::uint64_t number) const;
  // Of an average whose shares add up to nothing that can be divided by.
  Error no_divisor(Round round, std::uint64_t number, double divisor) const;
  // In handoff: nobody has the aggregate of the round any more.
  Error nobody_has(Round round) const;

 private:
  const PartitionShape& shape_;
  const std::span<const Contributor> contributors_;
  std::vector<bool> dropped_;  // by contributor, as far as needed
};

}  // namespace bps

// One partition of one job: what it holds, and whose contributions are added to it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "proto/base/dtype.h"
#include "proto/base/ids.h"
#include "proto/base/parts.h"
#include "proto/base/round_call.h"
#include "proto/reduce/reduce.h"
#include "proto/wire/messages.h"

namespace bps {

// A worker that takes part in the sums of a job, or a group of them that sum among themselves before
// (decision 0019). Its place in the list, in the order of which contributions are added, is its index.
struct Contributor {
  Rank rank;                       // of a group: the lowest one, which names it
  std::uint32_t weight = 1;        // ranks already summed in what it sends; at least 1
  std::string loss = {};           // why it is gone, once it is lost
  std::vector<Rank> members = {};  // of a group of several: those that are in the job, in order

  bool holds(Rank other) const {
    return rank == other || std::find(members.begin(), members.end(), other) != members.end();
  }
};

inline constexpr std::uint32_t kNobody = 0xffffffff;  // no contributor
// The contributor that holds the rank; kNobody: none does. `guess`: where it may be. Who looks up one rank
// after another in their order guesses the place behind the last one, and walks the list but once.
std::uint32_t find_contributor(std::span<const Contributor> contributors, Rank rank, std::uint32_t guess = 0);
// The contributor that holds the root of the call; kNobody: it has none, or no contributor holds it.
std::uint32_t find_root(std::span<const Contributor> contributors, const RoundCall& call);

// "rank 4 (with 5, 6 of its host)"
std::string to_string(const Contributor& contributor);

struct PartitionShape {
  PartitionId partition;
  std::string tensor;  // its name, for messages
  DType dtype = DType::f32;
  std::uint64_t begin = 0;  // its first element, in the tensor
  std::size_t elements = 0;
  Mode mode = Mode::sync;
  std::uint32_t staleness = kUnboundedStaleness;
  bool moved = false;  // another server had it before: nothing completes before all have resumed
  std::vector<Parts::Slice> owners = {};  // if the tensor has parts: whose the elements are, in order
  bool had_losses = false;  // the job had lost workers before: who is no contributor may have been one

  std::size_t raw_bytes() const { return elements * size_of(dtype); }
  // Of a call of the first `count` elements of the tensor.
  std::size_t elements_of(std::uint64_t count) const {
    return static_cast<std::size_t>(std::min<std::uint64_t>(elements, count > begin ? count - begin : 0));
  }
  std::size_t bytes_of(std::uint64_t count) const { return elements_of(count) * size_of(dtype); }
  // A result of so many bytes is possible: of whole elements, and of an asynchronous tensor of all.
  bool may_have(std::uint64_t bytes) const {
    if (mode == Mode::async) return bytes == raw_bytes();
    return bytes <= raw_bytes() && bytes % size_of(dtype) == 0;
  }
  // What ranks call on the tensor, as it is in this partition.
  RoundCall in_partition(const RoundCall& call) const {
    return call.in_partition(owners.size() == 1 ? std::optional(owners.front().rank) : std::nullopt, dtype);
  }
};

}  // namespace bps

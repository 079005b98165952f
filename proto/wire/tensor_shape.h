// What follows from the ranks and the parts that a tensor is declared with.
#pragma once

#include <cstdint>

#include "proto/base/partitioner.h"
#include "proto/base/result.h"
#include "proto/wire/messages.h"

namespace bps {

// invalid_argument, with the exact numbers: `rank` of a job of so many cannot declare a tensor of these ranks
// and parts. To be asked before the tensor is cut.
Status check_shape(const TensorDeclaration& declaration, Rank rank, std::uint32_t world_size);

// What the lists of ranks and parts add to the partitions of a tensor: all of them share the limits of a
// message.
inline std::uint64_t listed(const TensorDeclaration& declaration) {
  return declaration.ranks.size() + declaration.parts.size();
}

Partitioner partitioner_of(const TensorDeclaration& declaration, std::uint64_t partition_bytes);

}  // namespace bps

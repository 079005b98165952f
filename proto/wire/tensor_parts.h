// What follows from the parts that a tensor is declared with.
#pragma once

#include <cstdint>

#include "proto/base/partitioner.h"
#include "proto/base/result.h"
#include "proto/wire/messages.h"

namespace bps {

// invalid_argument, with the exact numbers: a tensor of a job of so many ranks cannot have these parts. To be
// asked before the tensor is cut.
Status check_parts(const TensorDeclaration& declaration, std::uint32_t world_size);

Partitioner partitioner_of(const TensorDeclaration& declaration, std::uint64_t partition_bytes);

}  // namespace bps

// Which members of a job are one contributor: those with the same leader (decision 0019). One rule for who
// says it and who is told.
#pragma once

#include <vector>

#include "proto/base/result.h"
#include "proto/wire/messages.h"

namespace bps {

// Members of a group say the same size, and each has a place of its own. Some may be left out: they are lost.
// Those of weight 0 are in no group.
Status check_groups(const std::vector<Member>& members);

}  // namespace bps

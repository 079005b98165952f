// What is wrong with a message or an exchange of messages, before it begins; and what needs no network: this
// rank's own part. Pure; any thread.
#pragma once

#include <string>

#include "client/src/calls/group_calls.h"
#include "client/src/tensors/request.h"
#include "proto/base/rank_list.h"

namespace bps {

// Where the caller has given no lengths of parts, they are set: all are equal. `group` is the group's name,
// `ranks` those of the group, of which this rank is one. An error: `invalid_argument`, with exact numbers.
Status prepare_message(GroupRequest& request, const std::string& group, const RankList& ranks,
                       const RequestRules& rules);

// Of a request that nothing is wrong with, at this place in its group.
void copy_own_part(const GroupRequest& request, std::uint32_t place);

}  // namespace bps

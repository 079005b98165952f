#include "proto/wire/member_groups.h"

#include <fmt/core.h>

#include <map>
#include <set>
#include <utility>

namespace bps {

Status check_groups(const std::vector<Member>& members) {
  std::map<Rank, std::uint32_t> sizes;  // by leader
  std::set<std::pair<Rank, std::uint32_t>> places;
  for (const Member& member : members) {
    if (member.weight == 0) continue;
    const bool is_right = member.leader <= member.rank && member.weight <= kMaxLocalGroupSize &&
                          member.group_rank < member.weight &&
                          sizes.emplace(member.leader, member.weight).first->second == member.weight &&
                          places.emplace(member.leader, member.group_rank).second;
    if (is_right) continue;
    return make_error(ErrorCode::protocol,
                      fmt::format("rank {} cannot be number {} of {} in the group of rank {}",
                                  member.rank.value, member.group_rank, member.weight, member.leader.value));
  }
  return {};
}

}  // namespace bps

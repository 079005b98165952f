// The workers of a host that are one contributor: decision 0019.
#include <fmt/format.h>

#include "proto/base/config/units.h"
#include "proto/wire/limits.h"
#include "scheduler/job/membership.h"

namespace bps {

Status Membership::form_groups() {
  std::map<std::string, std::vector<Worker*>> groups;
  for (auto& [rank, worker] : workers_) {
    worker.leader = rank;
    worker.group_rank = 0;
    worker.group_size = 1;
    if (settings_.local_group != LocalGrouping::off) groups[worker.group_name].push_back(&worker);
  }
  for (const auto& [name, members] : groups) {
    const auto size = static_cast<std::uint32_t>(members.size());
    if (size > kMaxLocalGroupSize) {
      return make_error(
          ErrorCode::configuration,
          fmt::format("{} of job {} are on host {}, at most {} can sum there", counted(size, "worker"),
                      settings_.job, members.front()->host, kMaxLocalGroupSize),
          "give parts of them a BPS_LOCAL_GROUP_ID of their own, or set local_group off");
    }
    for (std::uint32_t i = 0; i < size; ++i) {
      Worker& worker = *members[i];
      if (worker.told_group_size != 0 && worker.told_group_size != size) {
        return make_error(
            ErrorCode::configuration,
            fmt::format("{} of job {} was told that host {} has {}, {} have come", name_of(worker.rank),
                        settings_.job, worker.host, counted(worker.told_group_size, "worker"), size),
            "give all ranks of a host their real number (BPS_LOCAL_SIZE), or none");
      }
      worker.leader = members.front()->rank;
      worker.group_rank = i;
      worker.group_size = size;
    }
  }
  return {};
}

void Membership::restore_group(const Member& member) {
  const auto found = workers_.find(member.rank);
  if (found == workers_.end()) return;
  found->second.leader = member.leader;
  found->second.group_rank = member.group_rank;
  found->second.group_size = member.weight;
}

bool Membership::is_in_its_group(const Member& member) const {
  const auto found = workers_.find(member.rank);
  if (found == workers_.end()) return true;
  const Worker& worker = found->second;
  return worker.leader == member.leader && worker.group_rank == member.group_rank &&
         worker.group_size == member.weight;
}

}  // namespace bps

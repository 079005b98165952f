#include "scheduler/job/roster.h"

namespace bps {

Roster::Roster(const Membership& membership) {
  for (const Member& member : membership.members()) {
    groups_[member.leader].push_back(member);
    ++hosts_[member.host];
    ++workers_;
    has_groups_ = has_groups_ || member.weight > 1;
  }
}

void Roster::describe(const Worker& worker, JobStart& start) const {
  start.members = groups_.at(worker.leader);
  start.workers = workers_;
  start.host_workers = hosts_.at(worker.host);
  start.groups = has_groups_;
}

}  // namespace bps

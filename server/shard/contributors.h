// Who contributes to a tensor: all members of the job, or the ranks of a group. Over whose lane each of its
// partitions goes, and who of them has left or is lost.
//
// Members of one host that sum among themselves first are one contributor of the job (decision 0019): each
// partition is one member's, who sends it and is answered. In a group every rank is a contributor.
//
// Owner: a ShardJob, and the partitions that it makes. Lives on: shard loop. The list is never longer or
// shorter than at the beginning: a rank that is left out of the job then is none.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "proto/base/rank_list.h"
#include "proto/wire/messages.h"
#include "server/aggregate/partition.h"
#include "server/lane_admission.h"

namespace bps {

class Contributors {
 public:
  // All of the job: `members`, which outlive it, as they were `declared`. Sets their place among them.
  Contributors(std::vector<JobMember>& members, const std::vector<Member>& declared);
  // A group, in the order of its `ranks`. The members outlive it.
  Contributors(std::vector<JobMember>& members, const std::vector<Rank>& ranks);

  std::span<const Contributor> list() const { return list_; }
  const Contributor& operator[](std::uint32_t contributor) const { return list_[contributor]; }

  // kNobody: it is none.
  std::uint32_t of(const JobMember& member) const {
    if (!is_group_) return member.contributor;
    return list_.empty() ? kNobody : ranks_.place_of(member.rank).value_or(kNobody);
  }
  // Who of the contributor's members has the partition; null: it is left out of the job.
  const JobMember* member_of(std::uint32_t contributor, PartitionId partition) const {
    const Seats& seats = seats_[contributor];
    return member_at_[seats.size == 1 ? seats.first : seats.first + partition.value % seats.size];
  }
  bool owns(const JobMember& member, PartitionId partition) const {
    const std::uint32_t contributor = of(member);
    return contributor != kNobody && member_of(contributor, partition) == &member;
  }

  // One of its members pushes no more, so it does not. False if it is lost.
  bool has_left(std::uint32_t contributor) const;
  std::uint32_t live_ranks() const;

  // One of its members is lost.
  void lose(std::uint32_t contributor, const std::string& loss) { list_[contributor].loss = loss; }

 private:
  // The members of a contributor: their places, one for each, also for those that are left out of the job.
  struct Seats {
    std::uint32_t first = 0;
    std::uint32_t size = 1;
  };

  const bool is_group_;
  RankList ranks_;  // of a group: those that are members
  std::vector<Contributor> list_;
  std::vector<Seats> seats_;           // by contributor
  std::vector<JobMember*> member_at_;  // by place; null: left out
};

}  // namespace bps

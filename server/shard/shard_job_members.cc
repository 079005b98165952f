// The members of a job at one shard: which of them are one contributor, and what becomes of it when they go.
//
// A group pushes nothing whole without any one of its members, so the first that leaves is the end of its
// contributions, and with the first that is lost it is lost (decision 0019). Only what others may still ask
// of a member alone, the answers of its own partitions, ends when that member goes.
#include <algorithm>
#include <utility>

#include "server/shard/shard_job.h"

namespace bps {

void ShardJob::add_members(const std::vector<Member>& members) {
  members_.resize(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    members_[i].rank = members[i].rank;
    members_[i].incarnation = members[i].incarnation;
    senders_ += members[i].weight > 0 ? 1 : 0;
  }
  everyone_ = std::make_shared<Contributors>(members_, members);
}

std::shared_ptr<Contributors> ShardJob::contributors_of(const std::vector<Rank>& ranks) {
  if (ranks.empty()) return everyone_;
  if (groups_.size() > 2 * groups_looked_at_) {
    std::erase_if(groups_, [](const auto& entry) { return entry.second.expired(); });
    groups_looked_at_ = groups_.size() + 1;
  }
  std::weak_ptr<Contributors>& group = groups_[ranks];
  std::shared_ptr<Contributors> contributors = group.lock();
  if (contributors == nullptr) group = contributors = std::make_shared<Contributors>(members_, ranks);
  return contributors;
}

JobMember* ShardJob::find_member(Rank rank) {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const JobMember& member) { return member.rank == rank; });
  return found == members_.end() ? nullptr : &*found;
}

// What the aggregator of a new partition has missed.
void ShardJob::tell_past(PartitionId id, JobPartition& partition) {
  const Contributors& all = *partition.contributors;
  Aggregator& aggregator = *partition.aggregator;
  for (std::uint32_t i = 0; i < all.list().size(); ++i) {
    const JobMember* const owner = all.member_of(i, id);
    if (!all[i].loss.empty()) aggregator.died(i, actions_);
    if (all.has_left(i)) aggregator.left(i, actions_);
    if (owner == nullptr || owner->gone || !owner->loss.empty()) aggregator.gone(i, actions_);
  }
}

void ShardJob::worker_left(Rank rank, bool lingers) {
  JobMember* const member = find_member(rank);
  if (member == nullptr) return;
  const bool is_sender = member->contributor != kNobody;
  const bool has_left = is_sender && everyone_->has_left(member->contributor);
  const bool leaves = !std::exchange(member->left, true);
  const bool goes = !lingers && !std::exchange(member->gone, true);
  if (!is_sender) return;
  const bool is_first = leaves && !has_left && (*everyone_)[member->contributor].loss.empty();
  tell_all(*member, [&](std::uint32_t contributor, PartitionId id, JobPartition& partition) {
    if (is_first) partition.aggregator->left(contributor, actions_);
    if (goes && partition.contributors->owns(*member, id)) partition.aggregator->gone(contributor, actions_);
  });
  reap();
}

// What it contributes with its group ends with the first of them.
void ShardJob::worker_dropped(Rank rank, const std::vector<TensorId>& tensors) {
  const JobMember* const member = find_member(rank);
  if (member == nullptr || member->contributor == kNobody) return;
  if (!(*everyone_)[member->contributor].loss.empty()) return;
  for (const TensorId tensor : tensors) {
    partitions_.visit_tensor(tensor, [&](PartitionId id, JobPartition& partition) {
      const std::uint32_t contributor = partition.contributors->of(*member);
      if (contributor == kNobody) return;
      partition.aggregator->dropped(contributor, actions_);
      carry_out(id, partition, actions_);
    });
  }
  reap();
}

void ShardJob::shrink(const Shrunk& shrunk) {
  generation_ = std::max(generation_, shrunk.generation);
  const std::string loss = shrunk.reason.empty() ? "it is lost" : shrunk.reason;
  for (const Rank rank : shrunk.lost)
    lose(rank, loss);
  reap();
}

// Of a group all are lost that have not left; those are told so one by one, and this once.
void ShardJob::lose(Rank rank, const std::string& loss) {
  JobMember* const lost = find_member(rank);
  if (lost == nullptr || !lost->loss.empty() || lost->left) return;
  const std::uint32_t contributor = lost->contributor;
  const bool is_sender = contributor != kNobody;
  const bool has_left = is_sender && everyone_->has_left(contributor);
  const bool goes_whole = is_sender && !has_left;
  if (goes_whole) everyone_->lose(contributor, loss);
  for (const auto& [ranks, weak] : groups_) {
    const std::shared_ptr<Contributors> group = weak.lock();
    const std::uint32_t place = group == nullptr ? kNobody : group->of(*lost);
    if (place != kNobody) group->lose(place, loss);
  }
  for (JobMember& member : members_) {
    if (&member != lost && !(goes_whole && member.contributor == contributor)) continue;
    member.loss = loss;
    close_lane(member);
  }
  if (!is_sender) return;
  tell_all(*lost, [&](std::uint32_t index, PartitionId id, JobPartition& partition) {
    if (!has_left) partition.aggregator->died(index, actions_);
    if (partition.contributors->owns(*lost, id)) partition.aggregator->gone(index, actions_);
  });
}

void ShardJob::close_lane(const JobMember& member) {
  const auto lane = std::find_if(lanes_.begin(), lanes_.end(),
                                 [&](const auto& entry) { return entry->rank() == member.rank; });
  if (lane == lanes_.end()) return;
  (*lane)->dismiss(make_error(ErrorCode::peer_lost, "the job goes on without you: " + member.loss));
  remove_lane(**lane);
}

}  // namespace bps

// The members of a job at one shard: which of them are one contributor, and what becomes of it when they go.
//
// A group pushes nothing whole without any one of its members, so the first that leaves is the end of its
// contributions, and with the first that is lost it is lost (decision 0019). Only what others may still ask
// of a member alone, the answers of its own partitions, ends when that member goes.
#include <algorithm>
#include <map>
#include <utility>

#include "server/shard/shard_job.h"

namespace bps {

void ShardJob::add_members(const std::vector<Member>& members) {
  std::map<Rank, std::uint32_t> contributor_of;  // by the lowest rank of its group
  for (const Member& member : members) {
    if (member.weight > 0) contributor_of.emplace(member.leader, member.weight);
  }
  for (auto& [leader, value] : contributor_of) {
    const std::uint32_t size = std::exchange(value, static_cast<std::uint32_t>(contributors_.size()));
    contributors_.push_back({leader, size});
    groups_.push_back({static_cast<std::uint32_t>(lane_of_.size()), size});
    lane_of_.resize(lane_of_.size() + size, nullptr);
  }
  member_at_.resize(lane_of_.size(), nullptr);
  members_.reserve(members.size());
  for (const Member& member : members) {
    JobMember& entry = members_.emplace_back();
    entry.rank = member.rank;
    entry.incarnation = member.incarnation;
    entry.contributor = ServerLane::kNoContributor;
    if (member.weight == 0) continue;
    ++senders_;
    entry.contributor = contributor_of.at(member.leader);
    entry.group_rank = member.group_rank;
    entry.group_size = member.weight;
    entry.place = groups_[entry.contributor].first + member.group_rank;
    member_at_[entry.place] = &entry;
    if (member.weight > 1) contributors_[entry.contributor].members.push_back(member.rank);
  }
}

JobMember* ShardJob::find_member(Rank rank) {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const JobMember& member) { return member.rank == rank; });
  return found == members_.end() ? nullptr : &*found;
}

// What the aggregator of a new partition has missed.
void ShardJob::tell_past(PartitionId id, Aggregator& aggregator) {
  for (std::uint32_t i = 0; i < contributors_.size(); ++i) {
    const JobMember* const owner = owner_of(i, id);
    if (!contributors_[i].loss.empty()) aggregator.died(i, actions_);
    if (groups_[i].left) aggregator.left(i, actions_);
    if (owner == nullptr || owner->gone || !owner->loss.empty()) aggregator.gone(i, actions_);
  }
}

void ShardJob::worker_left(Rank rank, bool lingers) {
  JobMember* const member = find_member(rank);
  if (member == nullptr) return;
  const bool leaves = !std::exchange(member->left, true);
  const bool goes = !lingers && !std::exchange(member->gone, true);
  const std::uint32_t contributor = member->contributor;
  if (contributor == ServerLane::kNoContributor) return;
  const bool is_first =
      leaves && contributors_[contributor].loss.empty() && !std::exchange(groups_[contributor].left, true);
  tell_all([&](PartitionId id, Aggregator& aggregator) {
    if (is_first) aggregator.left(contributor, actions_);
    if (goes && owns(*member, id)) aggregator.gone(contributor, actions_);
  });
  reap_dropped();
}

// What it contributes with its group ends with the first of them.
void ShardJob::worker_dropped(Rank rank, const std::vector<TensorId>& tensors) {
  const JobMember* const member = find_member(rank);
  if (member == nullptr || member->contributor == ServerLane::kNoContributor) return;
  if (!contributors_[member->contributor].loss.empty()) return;
  for (const TensorId tensor : tensors) {
    partitions_.visit_tensor(tensor, [&](PartitionId id, JobPartition& partition) {
      partition.aggregator->dropped(member->contributor, actions_);
      carry_out(id, partition, actions_);
    });
  }
  reap_dropped();
}

void ShardJob::shrink(const Shrunk& shrunk) {
  generation_ = std::max(generation_, shrunk.generation);
  const std::string loss = shrunk.reason.empty() ? "it is lost" : shrunk.reason;
  for (const Rank rank : shrunk.lost)
    lose(rank, loss);
  reap_dropped();
}

// Of a group all are lost that have not left; those are told so one by one, and this once.
void ShardJob::lose(Rank rank, const std::string& loss) {
  JobMember* const lost = find_member(rank);
  if (lost == nullptr || !lost->loss.empty() || lost->left) return;
  const std::uint32_t contributor = lost->contributor;
  const bool is_sender = contributor != ServerLane::kNoContributor;
  const bool has_left = is_sender && groups_[contributor].left;
  if (is_sender && !has_left) contributors_[contributor].loss = loss;
  for (JobMember& member : members_) {
    const bool goes_too = is_sender && !has_left && member.contributor == contributor;
    if (&member != lost && !goes_too) continue;
    member.loss = loss;
    close_lane(member);
  }
  if (!is_sender) return;
  tell_all([&](PartitionId id, Aggregator& aggregator) {
    if (!has_left) aggregator.died(contributor, actions_);
    if (owns(*lost, id)) aggregator.gone(contributor, actions_);
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

#include "server/shard/contributors.h"

#include <algorithm>
#include <map>
#include <utility>

namespace bps {

// In the order of the lowest ranks of their hosts.
Contributors::Contributors(std::vector<JobMember>& members, const std::vector<Member>& declared)
    : is_group_(false) {
  std::map<Rank, std::uint32_t> contributor_of;  // by the lowest rank of its host
  for (const Member& member : declared) {
    if (member.weight > 0) contributor_of.emplace(member.leader, member.weight);
  }
  std::uint32_t places = 0;
  for (auto& [leader, value] : contributor_of) {
    const std::uint32_t size = std::exchange(value, static_cast<std::uint32_t>(list_.size()));
    list_.push_back({leader, size});
    seats_.push_back({places, size});
    places += size;
  }
  member_at_.resize(places, nullptr);
  for (std::size_t i = 0; i < declared.size(); ++i) {
    const Member& member = declared[i];
    JobMember& entry = members[i];
    entry.contributor = kNobody;
    if (member.weight == 0) continue;
    entry.contributor = contributor_of.at(member.leader);
    member_at_[seats_[entry.contributor].first + member.group_rank] = &entry;
    if (member.weight > 1) list_[entry.contributor].members.push_back(member.rank);
  }
}

Contributors::Contributors(std::vector<JobMember>& members, const std::vector<Rank>& ranks)
    : is_group_(true) {
  std::vector<Rank> here;
  for (const Rank rank : ranks) {
    const auto member = std::lower_bound(members.begin(), members.end(), rank,
                                         [](const JobMember& m, Rank wanted) { return m.rank < wanted; });
    if (member == members.end() || member->rank != rank) continue;
    seats_.push_back({static_cast<std::uint32_t>(here.size()), 1});
    here.push_back(rank);
    list_.push_back({rank, 1, member->loss});
    member_at_.push_back(&*member);
  }
  ranks_ = RankList(std::move(here));
}

bool Contributors::has_left(std::uint32_t contributor) const {
  const auto begin = member_at_.begin() + seats_[contributor].first;
  return list_[contributor].loss.empty() &&
         std::any_of(begin, begin + seats_[contributor].size,
                     [](const JobMember* member) { return member != nullptr && member->left; });
}

std::uint32_t Contributors::live_ranks() const {
  std::uint32_t live = 0;
  for (const Contributor& contributor : list_)
    live += contributor.loss.empty() ? contributor.weight : 0;
  return live;
}

}  // namespace bps

// Whom and what waits of a rank are for that sums with others of its host, in words.
#include <fmt/core.h>

#include <algorithm>

#include "client/src/group/group_plane.h"

namespace bps {

namespace {

// "rank 3", "ranks 3, 5".
std::string ranks_text(const std::vector<Rank>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const Rank& rank : ranks)
    text += fmt::format("{} {}", &rank == &ranks.front() ? "" : ",", rank.value);
  return text;
}

}  // namespace

std::string GroupPlane::describe(const TensorState& tensor) const {
  if (down_) return "; " + *down_;
  const auto known = tensors_.find(tensor.id());
  if (known == tensors_.end()) return "";
  const std::string waits_for = group_->waits_for();
  return describe(known->second) + (waits_for.empty() ? "" : "; " + waits_for);
}

std::string GroupPlane::describe_begin() const {
  if (!is_leader() && !setup_) return ranks_text({place_.ranks.front()}) + " has not";
  const std::string waits_for = group_->waits_for();
  return waits_for.empty() ? "the GPU is being prepared" : waits_for;
}

std::string GroupPlane::name_of_others() const {
  std::vector<Rank> others = place_.ranks;
  others.erase(others.begin() + place_.self);
  return ranks_text(others) + " of this host";
}

std::string GroupPlane::describe(const Tensor& known) const {
  const TensorState& tensor = *known.state;
  if (!known.is_said && !is_begun_) return "; waiting for the GPU to be prepared";
  if (!known.is_said) return "; waiting for the work that its stream had before it";
  if (!known.is_ordered && !is_alone()) return describe_late(tensor);
  std::vector<Rank> owners, parts;
  const auto name = [&](std::vector<Rank>& ranks, std::uint32_t member) {
    const Rank rank = place_.ranks[member];
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  };
  std::size_t open = 0;
  for (const Partition& partition : tensor.partitions()) {
    if (partition.settled || partition.spread) continue;
    open += partition.open > 0 ? 1 : 0;
    if (partition.role == Partition::Role::member) {
      name(owners, partition.id.value % static_cast<std::uint32_t>(place_.ranks.size()));
    } else if (!partition.summed) {
      for (const std::uint32_t member : group_->missing(partition.id))
        name(parts, member);
    }
  }
  std::string text;
  if (open > 0)
    text =
        fmt::format("; {} of {} partitions are being moved on this host", open, tensor.partitions().size());
  if (!parts.empty()) text += "; waiting for " + ranks_text(parts) + " of this host to bring a part";
  if (!owners.empty()) text += "; waiting for " + ranks_text(owners) + " of this host to spread answers";
  return text;
}

std::string GroupPlane::describe_late(const TensorState& tensor) const {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const LocalWaiting& waiting) {
    return waiting.tensor == tensor.id() && waiting.round == tensor.round();
  });
  if (found == waiting_.end()) return "; waiting for the other ranks of this host to begin";
  return "; waiting for " + ranks_text(found->missing) + " of this host to begin";
}

}  // namespace bps

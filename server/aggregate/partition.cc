#include "server/aggregate/partition.h"

#include <algorithm>

namespace bps {

std::uint32_t find_root(std::span<const Contributor> contributors, const RoundCall& call) {
  return call.has_root() ? find_contributor(contributors, call.root) : kNobody;
}

std::uint32_t find_contributor(std::span<const Contributor> contributors, Rank rank, std::uint32_t guess) {
  // Mostly all ranks of the job contribute.
  if (rank.value < contributors.size() && contributors[rank.value].rank == rank) return rank.value;
  const auto holds = [&](const Contributor& c) { return c.holds(rank); };
  const auto from = contributors.begin() + std::min<std::size_t>(guess, contributors.size());
  if (const auto found = std::find_if(from, contributors.end(), holds); found != contributors.end())
    return static_cast<std::uint32_t>(found - contributors.begin());
  const auto found = std::find_if(contributors.begin(), from, holds);
  return found == from ? kNobody : static_cast<std::uint32_t>(found - contributors.begin());
}

std::string to_string(const Contributor& contributor) {
  std::string text = "rank " + std::to_string(contributor.rank.value);
  std::string others;
  for (const Rank member : contributor.members) {
    if (member != contributor.rank) others += (others.empty() ? "" : ", ") + std::to_string(member.value);
  }
  return others.empty() ? text : text + " (with " + others + " of its host)";
}

}  // namespace bps

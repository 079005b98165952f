#include "server/aggregate/partition.h"

namespace bps {

std::string to_string(const Contributor& contributor) {
  std::string text = "rank " + std::to_string(contributor.rank.value);
  std::string others;
  for (const Rank member : contributor.members) {
    if (member != contributor.rank) others += (others.empty() ? "" : ", ") + std::to_string(member.value);
  }
  return others.empty() ? text : text + " (with " + others + " of its host)";
}

}  // namespace bps

#include "proto/wire/open_round_list.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "proto/wire/limits.h"

namespace bps {
namespace {

std::vector<Rank> united(const std::vector<Rank>& a, const std::vector<Rank>& b) {
  std::vector<Rank> out;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  if (out.size() > kMaxMissingNamed) out.resize(kMaxMissingNamed);
  return out;
}

std::vector<Rank> in_one_of(const std::vector<Rank>& a, const std::vector<Rank>& b) {
  std::vector<Rank> out;
  std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

}  // namespace

void OpenRoundList::add(OpenRound round) {
  std::sort(round.missing.begin(), round.missing.end());
  const auto [place, is_new] = rounds_.try_emplace({round.tensor, round.stage}, round);
  if (is_new) return;
  OpenRound& known = place->second;
  const bool is_resuming = round.stage == RoundStage::resume;
  if (round.round > known.round && !is_resuming) return;
  if (round.round < known.round && !is_resuming) {
    known = std::move(round);
    return;
  }
  known.round = std::max(known.round, round.round);
  known.age_ms = std::max(known.age_ms, round.age_ms);
  known.partitions = std::min(known.partitions + round.partitions, kMaxPartitionsPerJob);
  known.expected = std::max(known.expected, round.expected);
  std::sort(round.partial.begin(), round.partial.end());
  known.partial = united(known.partial, round.partial);
  if (known.missing != round.missing) {
    known.partial = united(known.partial, in_one_of(known.missing, round.missing));
    known.missing = united(known.missing, round.missing);
  }
  known.absent = std::max({known.absent, round.absent, static_cast<std::uint32_t>(known.missing.size())});
}

OpenRounds OpenRoundList::take(std::uint64_t request, std::uint64_t older_than_ms) {
  OpenRounds out;
  out.request = request;
  for (auto& [key, round] : std::exchange(rounds_, {})) {
    if (round.age_ms >= older_than_ms) out.rounds.push_back(std::move(round));
  }
  std::stable_sort(out.rounds.begin(), out.rounds.end(),
                   [](const OpenRound& a, const OpenRound& b) { return a.age_ms > b.age_ms; });
  out.more = std::exchange(more_, 0);
  if (out.rounds.size() > kMaxWaitsNamed) {
    out.more += static_cast<std::uint32_t>(out.rounds.size() - kMaxWaitsNamed);
    out.rounds.resize(kMaxWaitsNamed);
  }
  return out;
}

}  // namespace bps

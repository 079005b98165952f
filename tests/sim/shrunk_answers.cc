#include "tests/sim/shrunk_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace bps::sim {
namespace {

std::uint64_t hash_of(const std::vector<std::byte>& bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte byte : bytes)
    hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3u;
  return hash | 1;
}

bool adds(Operation operation) {
  return operation == Operation::sum || operation == Operation::product || operation == Operation::bit_xor;
}

}  // namespace

void ShrunkAnswers::note_lost(Rank rank) {
  for (const auto& ranks : job_.contributors()) {
    if (std::find(ranks.begin(), ranks.end(), rank.value) != ranks.end())
      lost_.insert(ranks.begin(), ranks.end());
  }
}

// Who may have been summed: all who live, and any of the lost. The likely ones first.
std::vector<ShrunkAnswers::Contributors> ShrunkAnswers::candidates() const {
  Contributors contributors = job_.contributors();
  const auto first_lost =
      std::stable_partition(contributors.begin(), contributors.end(),
                            [&](const auto& ranks) { return !is_lost(Rank{ranks.front()}); });
  const Contributors lost(first_lost, contributors.end());
  contributors.erase(first_lost, contributors.end());
  std::vector<Contributors> all;
  for (std::size_t choice = std::size_t{1} << lost.size(); choice-- > 0;) {
    Contributors in = contributors;
    for (std::size_t i = 0; i < lost.size(); ++i) {
      if ((choice >> i & 1) != 0) in.push_back(lost[i]);
    }
    std::sort(in.begin(), in.end());  // by the lowest rank of each
    if (!in.empty()) all.push_back(std::move(in));
  }
  return all;
}

std::string ShrunkAnswers::check(std::size_t tensor, std::uint64_t round, Rank rank,
                                 const std::vector<std::byte>& actual, std::uint32_t weight) {
  const TensorPlan& plan = job_.tensors[tensor];
  if (plan.elements == 0) return {};
  const RoundCall how = round_plan(job_, tensor, round);
  seen_[{tensor, round}][rank.value] = Seen{hash_of(actual), weight};
  if (!how.is_broadcast()) return check_sum(tensor, round, how, actual, weight);
  if (weight == 1 && actual == contribution(job_, tensor, round, how.root)) return {};
  return fmt::format("broadcast in round {} of {} is wrong, weight {}", round, plan.name, weight);
}

std::string ShrunkAnswers::check_sum(std::size_t tensor, std::uint64_t round, const RoundCall& how,
                                     const std::vector<std::byte>& actual, std::uint32_t weight) const {
  const TensorPlan& plan = job_.tensors[tensor];
  const std::size_t slice = job_.partition_bytes / size_of(plan.dtype) * size_of(plan.dtype);
  std::vector<std::set<std::uint32_t>> weights((actual.size() + slice - 1) / slice);  // that would be right
  const auto is_explained = [&] {
    bool exact = false;
    for (const auto& possible : weights) {
      const bool equal = possible.count(weight) != 0;
      exact = exact || equal;
      const bool heavier = possible.upper_bound(weight) != possible.end();
      const bool may_be_heavier = !adds(how.operation) || job_.unequal_sums;
      if (!equal && !(heavier && may_be_heavier)) return false;
    }
    return exact;
  };
  for (const Contributors& contributors : candidates()) {
    std::uint32_t ranks = 0;
    for (const auto& one : contributors)
      ranks += static_cast<std::uint32_t>(one.size());
    const std::vector<std::byte> right = expected_sum(job_, tensor, round, contributors);
    for (std::size_t p = 0; p < weights.size(); ++p) {
      const std::size_t bytes = std::min(slice, actual.size() - p * slice);
      if (std::memcmp(right.data() + p * slice, actual.data() + p * slice, bytes) == 0)
        weights[p].insert(ranks);
    }
    if (is_explained()) return {};
  }
  return fmt::format("{} of round {} of {} ({}, {} elements) is no sum of {} ranks", to_string(how), round,
                     plan.name, name_of(plan.dtype), plan.elements, weight);
}

bool ShrunkAnswers::may_fail(std::size_t tensor, std::uint64_t round, const Error& error) const {
  if (!job_.shrinks || lost_.empty() || error.code != ErrorCode::peer_lost) return false;
  const RoundCall how = round_plan(job_, tensor, round);
  const auto says = [&](std::string_view text) { return error.message.find(text) != std::string::npos; };
  if (!says(fmt::format("round {} of {}", said_round(job_, tensor, round), job_.tensors[tensor].name)))
    return false;
  if (how.has_root() && is_lost(how.root))
    return says(fmt::format("the root of the {} is lost", name_of(how.kind)));
  if (how.is_broadcast()) return false;
  return adds(how.operation) && !job_.unequal_sums && says("ranks, others");
}

void ShrunkAnswers::note_failed(std::size_t tensor, std::uint64_t round, Rank rank) {
  // Those that only give see no answer.
  if (round_plan(job_, tensor, round).kind == RoundKind::reduce) return;
  seen_[{tensor, round}][rank.value] = Seen{};
}

std::vector<std::string> ShrunkAnswers::differences() const {
  std::vector<std::string> found;
  for (const auto& [key, ranks] : seen_) {
    const RoundCall how = round_plan(job_, key.first, key.second);
    if (how.has_root() && is_lost(how.root)) continue;
    const Seen* first = nullptr;
    for (const auto& [rank, seen] : ranks) {
      if (is_lost(Rank{rank})) continue;
      if (first == nullptr) first = &seen;
      if (seen == *first) continue;
      found.push_back(fmt::format("rank {} has another answer to round {} of {} than others: weight {}, {}",
                                  rank, key.second, job_.tensors[key.first].name, seen.weight,
                                  seen.hash == 0 ? "failed" : "a sum"));
    }
  }
  return found;
}

}  // namespace bps::sim

#include "tests/sim/shrunk_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/sim/reference.h"

namespace bps::sim {
namespace {

std::uint64_t hash_of(const std::vector<std::byte>& bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte byte : bytes)
    hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3u;
  return hash | 1;
}

bool adds(Operation operation) { return operation == Operation::sum || operation == Operation::product; }

}  // namespace

// The ranks that may have been summed: all who live, and any of the lost. The likely ones first.
std::vector<std::vector<std::uint32_t>> ShrunkAnswers::candidates() const {
  const std::vector<std::uint32_t> lost(lost_.begin(), lost_.end());
  std::vector<std::vector<std::uint32_t>> all;
  const std::size_t choices = std::size_t{1} << lost.size();
  for (std::size_t choice = choices; choice-- > 0;) {
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t rank = 0; rank < job_.world_size(); ++rank) {
      const auto place = std::find(lost.begin(), lost.end(), rank);
      const bool in = place == lost.end() || (choice >> (place - lost.begin()) & 1) != 0;
      if (in) ranks.push_back(rank);
    }
    if (!ranks.empty()) all.push_back(std::move(ranks));
  }
  return all;
}

std::string ShrunkAnswers::check(std::size_t tensor, std::uint64_t round, Rank rank,
                                 const std::vector<std::byte>& actual, std::uint32_t weight) {
  const TensorPlan& plan = job_.tensors[tensor];
  if (plan.elements == 0) return {};
  seen_[{tensor, round}][rank.value] = Seen{hash_of(actual), weight};
  const RoundPlan how = round_plan(job_, tensor, round);
  if (how.operation != Operation::broadcast) return check_sum(tensor, round, how, actual, weight);
  if (weight == 1 && actual == contribution(job_, tensor, round, how.root)) return {};
  return fmt::format("broadcast in round {} of {} is wrong, weight {}", round, plan.name, weight);
}

std::string ShrunkAnswers::check_sum(std::size_t tensor, std::uint64_t round, const RoundPlan& how,
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
  for (const auto& ranks : candidates()) {
    std::vector<std::vector<std::byte>> parts;
    for (const std::uint32_t rank : ranks)
      parts.push_back(contribution(job_, tensor, round, Rank{rank}));
    const std::vector<std::byte> right = reference_reduce(plan.dtype, how.operation, parts);
    for (std::size_t p = 0; p < weights.size(); ++p) {
      const std::size_t bytes = std::min(slice, actual.size() - p * slice);
      if (std::memcmp(right.data() + p * slice, actual.data() + p * slice, bytes) == 0)
        weights[p].insert(static_cast<std::uint32_t>(ranks.size()));
    }
    if (is_explained()) return {};
  }
  return fmt::format("{} of round {} of {} ({}, {} elements) is no sum of {} ranks", name_of(how.operation),
                     round, plan.name, name_of(plan.dtype), plan.elements, weight);
}

bool ShrunkAnswers::may_fail(std::size_t tensor, std::uint64_t round, const Error& error) const {
  if (!job_.shrinks || lost_.empty() || error.code != ErrorCode::peer_lost) return false;
  const RoundPlan how = round_plan(job_, tensor, round);
  const auto says = [&](std::string_view text) { return error.message.find(text) != std::string::npos; };
  if (!says(fmt::format("round {} of {}", round, job_.tensors[tensor].name))) return false;
  if (how.operation == Operation::broadcast)
    return is_lost(how.root) && says("the root of the broadcast is lost");
  return adds(how.operation) && !job_.unequal_sums && says("ranks, others");
}

void ShrunkAnswers::note_failed(std::size_t tensor, std::uint64_t round, Rank rank) {
  seen_[{tensor, round}][rank.value] = Seen{};
}

std::vector<std::string> ShrunkAnswers::differences() const {
  std::vector<std::string> found;
  for (const auto& [key, ranks] : seen_) {
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

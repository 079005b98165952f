#include "tests/sim/shrunk_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace bps::sim {
namespace {

std::uint64_t hash_of(std::span<const std::byte> bytes) {
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
std::vector<ShrunkAnswers::Contributors> ShrunkAnswers::candidates(std::size_t tensor) const {
  const Contributors contributors = job_.contributors(tensor);
  const auto lost = static_cast<std::size_t>(
      std::count_if(contributors.begin(), contributors.end(),
                    [&](const auto& ranks) { return is_lost(Rank{ranks.front()}); }));
  std::vector<Contributors> all;
  for (std::size_t choice = std::size_t{1} << lost; choice-- > 0;) {
    Contributors in;
    std::size_t next_lost = 0;
    for (const auto& ranks : contributors) {
      if (!is_lost(Rank{ranks.front()}) || (choice >> next_lost++ & 1) != 0) in.push_back(ranks);
    }
    if (!in.empty()) all.push_back(std::move(in));
  }
  return all;
}

std::string ShrunkAnswers::check(std::size_t tensor, std::uint64_t round, Rank rank,
                                 std::span<const std::byte> actual, std::uint32_t weight) {
  const TensorPlan& plan = job_.tensors[tensor];
  if (plan.elements == 0) return {};
  const RoundCall how = round_plan(job_, tensor, round);
  const bool scatters = how.kind == RoundKind::reduce_scatter;
  // Parts differ.
  seen_[{tensor, round}][rank.value] = scatters ? Seen{1, 1} : Seen{hash_of(actual), weight};
  if (actual.empty()) return {};
  if (!how.is_copy()) {
    const std::size_t begin = scatters ? plan.part_begin(rank) : 0;
    return check_sum(tensor, round, how, begin, actual, weight);
  }
  const std::vector<std::byte> right = expected_copy(job_, tensor, round);
  if (weight == 1 && std::ranges::equal(actual, std::span(right).first(actual.size()))) return {};
  return fmt::format("{} in round {} of {} is wrong, weight {}", to_string(how), round, plan.name, weight);
}

std::string ShrunkAnswers::check_sum(std::size_t tensor, std::uint64_t round, const RoundCall& how,
                                     std::size_t begin, std::span<const std::byte> actual,
                                     std::uint32_t weight) const {
  const TensorPlan& plan = job_.tensors[tensor];
  const Partitioner partitioner = partitioner_of(plan.declaration(), job_.partition_bytes);
  struct Piece {  // of it, in one partition
    std::size_t from, to;
  };
  std::vector<Piece> pieces;
  for (std::uint64_t i = 0; i < partitioner.count(); ++i) {
    const Piece piece{std::max<std::size_t>(partitioner.offset(i), begin),
                      std::min<std::size_t>(partitioner.offset(i + 1), begin + actual.size())};
    if (piece.from < piece.to) pieces.push_back(piece);
  }
  std::vector<std::set<std::uint32_t>> weights(pieces.size());  // that would be right
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
  for (const Contributors& contributors : candidates(tensor)) {
    std::uint32_t ranks = 0;
    for (const auto& one : contributors)
      ranks += static_cast<std::uint32_t>(one.size());
    const std::vector<std::byte> right = expected_sum(job_, tensor, round, contributors);
    for (std::size_t p = 0; p < weights.size(); ++p) {
      const auto [from, to] = pieces[p];
      if (std::memcmp(right.data() + from, actual.data() + (from - begin), to - from) == 0)
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
  if (how.has_root() && is_lost(how.root) &&
      says(fmt::format("the root of the {} is lost", name_of(how.kind))))
    return true;
  if (how.is_of_parts() && says(fmt::format("the owner of a part of the {} is lost", name_of(how.kind))))
    return true;
  if (how.is_copy()) return false;
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
    if (how.kind == RoundKind::all_gather && !lost_.empty()) continue;
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

#include "tests/sim/round_memory.h"

#include <algorithm>

namespace bps::sim {
namespace {

constexpr std::byte kPoison{0x5c};

struct Range {
  std::size_t begin = 0, bytes = 0;
};

std::vector<std::byte> cut_out(const std::vector<std::byte>& whole, const Range& range) {
  const auto from = whole.begin() + static_cast<std::ptrdiff_t>(range.begin);
  return {from, from + static_cast<std::ptrdiff_t>(range.bytes)};
}

// What the call is of: the tensor's first `count` elements or the rank's part.
Range range_of(const TensorPlan& plan, bool is_part, std::uint64_t count, Rank rank) {
  if (is_part) return {plan.part_begin(rank), plan.part_bytes(rank)};
  return {0, count * size_of(plan.dtype)};
}

}  // namespace

RoundMemory::RoundMemory(const JobPlan& job, std::size_t tensor, std::uint64_t round, const RoundCall& how,
                         std::uint64_t count, Rank rank, bool in_place) {
  const TensorPlan& plan = job.tensors[tensor];
  const bool gathers = how.kind == RoundKind::all_gather;
  const bool gives = gathers || how.gives(how.root == rank);
  const bool takes = how.is_broadcast() || how.takes(how.root == rank);
  const Range from = range_of(plan, gathers, count, rank);
  const Range to = range_of(plan, how.kind == RoundKind::reduce_scatter, count, rank);
  is_one_ = how.is_broadcast() || (in_place && takes);
  std::vector<std::byte> given = gives ? cut_out(contribution(job, tensor, round, rank), from)
                                       : std::vector<std::byte>(from.bytes, kPoison);
  input_bytes_ = from.bytes;
  output_bytes_ = takes ? to.bytes : 0;
  if (!is_one_) {
    in_ = std::move(given);
    out_.assign(output_bytes_, kPoison);
    return;
  }
  input_begin_ = from.begin;
  output_begin_ = to.begin;
  out_.assign(how.is_of_parts() ? plan.bytes() : to.bytes, kPoison);
  std::copy(given.begin(), given.end(), out_.begin() + static_cast<std::ptrdiff_t>(from.begin));
}

bool RoundMemory::is_input_intact(const JobPlan& job, std::size_t tensor, std::uint64_t round,
                                  const RoundCall& how, std::uint64_t count, Rank rank) const {
  if (is_one_) return true;
  const Range from = range_of(job.tensors[tensor], how.kind == RoundKind::all_gather, count, rank);
  return in_ == cut_out(contribution(job, tensor, round, rank), from);
}

}  // namespace bps::sim

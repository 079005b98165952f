#include "proto/wire/tensor_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace bps {

namespace {

Error refuse(const TensorDeclaration& declaration, const std::string& why, std::string advice) {
  return make_error(ErrorCode::invalid_argument, fmt::format("tensor '{}' {}", declaration.name, why),
                    std::move(advice));
}

Status check_ranks(const TensorDeclaration& declaration, Rank rank, std::uint32_t world_size) {
  std::vector<Rank> ranks = declaration.ranks;
  if (ranks.empty()) return {};
  if (declaration.mode == Mode::async)
    return refuse(declaration, "is asynchronous and has ranks of its own",
                  "declare it synchronous, or of all ranks");
  std::sort(ranks.begin(), ranks.end());
  if (ranks.back().value >= world_size)
    return refuse(declaration,
                  fmt::format("is of rank {}, which is no rank of this job: they are 0 to {}",
                              static_cast<std::int32_t>(ranks.back().value), world_size - 1),
                  "give ranks of the job");
  const auto twice = std::adjacent_find(ranks.begin(), ranks.end());
  if (twice != ranks.end())
    return refuse(declaration, fmt::format("has rank {} twice", twice->value), "give each rank once");
  if (std::binary_search(ranks.begin(), ranks.end(), rank)) return {};
  constexpr std::size_t kNamed = 16;
  std::string named;
  for (std::size_t i = 0; i < std::min(declaration.ranks.size(), kNamed); ++i)
    named += (i > 0 ? ", " : "") + std::to_string(declaration.ranks[i].value);
  if (declaration.ranks.size() > kNamed) named += ", ...";
  return refuse(declaration,
                fmt::format("is declared by rank {}, which is not among its ranks: {}", rank.value, named),
                "add this rank to the list, or do not declare the tensor here");
}

Status check_parts(const TensorDeclaration& declaration, std::uint32_t ranks) {
  const std::vector<std::uint64_t>& parts = declaration.parts;
  if (parts.empty()) return {};
  if (declaration.mode == Mode::async)
    return refuse(declaration, "is asynchronous and has parts", "declare it synchronous, or without parts");
  if (Parts::fit(parts, ranks, declaration.elements)) return {};
  std::uint64_t sum = 0;
  for (const std::uint64_t part : parts)
    sum = part > std::numeric_limits<std::uint64_t>::max() - sum ? std::numeric_limits<std::uint64_t>::max()
                                                                 : sum + part;
  const std::string given =
      parts.size() == 1 && ranks > 1
          ? fmt::format("parts of {} elements for each of {} ranks", parts.front(), ranks)
          : fmt::format("{} parts of together {} elements", parts.size(), sum);
  return refuse(
      declaration, fmt::format("has {} elements and {}", declaration.elements, given),
      fmt::format("give one part for each of the {} ranks, of as many elements in all as the tensor has",
                  ranks));
}

}  // namespace

Status check_shape(const TensorDeclaration& declaration, Rank rank, std::uint32_t world_size) {
  if (Status status = check_ranks(declaration, rank, world_size); !status) return status;
  return check_parts(declaration, declaration.ranks.empty()
                                      ? world_size
                                      : static_cast<std::uint32_t>(declaration.ranks.size()));
}

Partitioner partitioner_of(const TensorDeclaration& declaration, std::uint64_t partition_bytes) {
  return {declaration.elements, declaration.dtype, partition_bytes, declaration.parts};
}

}  // namespace bps

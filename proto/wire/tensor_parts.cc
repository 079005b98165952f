#include "proto/wire/tensor_parts.h"

#include <fmt/format.h>

#include <limits>
#include <string>
#include <utility>

namespace bps {

Status check_parts(const TensorDeclaration& declaration, std::uint32_t world_size) {
  const std::vector<std::uint64_t>& parts = declaration.parts;
  if (parts.empty()) return {};
  const auto refuse = [&](const std::string& why, std::string advice) {
    return make_error(ErrorCode::invalid_argument, fmt::format("tensor '{}' {}", declaration.name, why),
                      std::move(advice));
  };
  if (declaration.mode == Mode::async)
    return refuse("is asynchronous and has parts", "declare it synchronous, or without parts");
  if (Parts::fit(parts, world_size, declaration.elements)) return {};
  std::uint64_t sum = 0;
  for (const std::uint64_t part : parts)
    sum = part > std::numeric_limits<std::uint64_t>::max() - sum ? std::numeric_limits<std::uint64_t>::max()
                                                                 : sum + part;
  const std::string given =
      parts.size() == 1 && world_size > 1
          ? fmt::format("parts of {} elements for each of {} ranks", parts.front(), world_size)
          : fmt::format("{} parts of together {} elements", parts.size(), sum);
  return refuse(
      fmt::format("has {} elements and {}", declaration.elements, given),
      fmt::format("give one part for each of the {} ranks, of as many elements in all as the tensor has",
                  world_size));
}

Partitioner partitioner_of(const TensorDeclaration& declaration, std::uint64_t partition_bytes) {
  return {declaration.elements, declaration.dtype, partition_bytes, declaration.parts};
}

}  // namespace bps

#include <algorithm>
#include <array>
#include <cstring>

#include "proto/reduce/reduce.h"

namespace bps::reduce {
namespace {

constexpr std::size_t kCheckedBlock = 256;  // elements: stays in the first-level cache
using Block = std::array<std::uint64_t, kCheckedBlock>;

// Has the sign of a sum that is wrong in one of its elements.
using Overflow = std::int64_t;

Overflow add(Block& sum, const std::byte* input, std::size_t count) {
  Block other{};
  std::memcpy(other.data(), input, count * sizeof(std::uint64_t));
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < kCheckedBlock; ++i) {
    const std::uint64_t result = sum[i] + other[i];
    wrong |= (sum[i] ^ result) & (other[i] ^ result);
    sum[i] = result;
  }
  return static_cast<Overflow>(wrong);
}

bool run(std::byte* out, const std::byte* first, std::span<const std::byte* const> inputs, std::size_t count,
         std::uint32_t divisor) {
  Overflow wrong = 0;
  for (std::size_t begin = 0; begin < count; begin += kCheckedBlock) {
    const std::size_t elements = std::min(kCheckedBlock, count - begin);
    const std::size_t offset = begin * sizeof(std::uint64_t);
    Block sum{};
    std::memcpy(sum.data(), first + offset, elements * sizeof(std::uint64_t));
    for (const std::byte* const input : inputs)
      wrong |= add(sum, input + offset, elements);
    if (divisor > 1) {
      for (std::uint64_t& element : sum)
        element = static_cast<std::uint64_t>(static_cast<std::int64_t>(element) / std::int64_t{divisor});
    }
    std::memcpy(out + offset, sum.data(), elements * sizeof(std::uint64_t));
  }
  return wrong >= 0;
}

}  // namespace

bool accumulate_checked(std::byte* accumulators, std::span<const std::byte* const> inputs, std::size_t count,
                        const std::byte* first) {
  return run(accumulators, first != nullptr ? first : accumulators, inputs, count, 1);
}

bool finish_checked(std::byte* out, const std::byte* accumulators, std::span<const std::byte* const> inputs,
                    std::size_t count, std::uint32_t weight, const std::byte* first) {
  return run(out, first != nullptr ? first : accumulators, inputs, count, weight);
}

}  // namespace bps::reduce

#include "bench/engines/values.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <vector>

#include "proto/reduce/reduce.h"

namespace bps::bench {
namespace {

// What a server makes of the contributions of `ranks`.
std::vector<std::byte> sum_of(const Pattern& pattern, const std::vector<std::uint32_t>& ranks,
                              std::uint64_t round, std::size_t count) {
  const std::size_t raw = count * size_of(pattern.dtype);
  std::vector<std::byte> slot(count * reduce::accumulator_size(pattern.dtype));
  fill_contribution(pattern, ranks.front(), round,
                    std::span(slot).subspan(reduce::raw_offset(pattern.dtype, count), raw));
  reduce::widen_in_place(pattern.dtype, slot.data(), count);
  std::vector<std::byte> part(raw);
  for (const std::uint32_t rank : std::span(ranks).subspan(1)) {
    fill_contribution(pattern, rank, round, part);
    const std::byte* const inputs[] = {part.data()};
    reduce::accumulate(pattern.dtype, Operation::sum, slot.data(), inputs, count);
  }
  reduce::finish(pattern.dtype, Operation::sum, slot.data(), slot.data(), {}, count, pattern.workers);
  slot.resize(raw);
  return slot;
}

std::vector<std::uint32_t> all_ranks(const Pattern& pattern) {
  std::vector<std::uint32_t> ranks(pattern.workers);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<std::byte> sum_of(const Pattern& pattern, std::uint64_t round, std::size_t count) {
  return sum_of(pattern, all_ranks(pattern), round, count);
}

}  // namespace

TEST_CASE("the sum of what all workers push is what is expected, in every type") {
  for (std::uint8_t d = 0; d < kDTypeCount; ++d) {
    for (const std::uint32_t workers :
         {1u, 2u, 3u, 8u, 17u, std::min(512u, max_workers(static_cast<DType>(d)))}) {
      const Pattern pattern{static_cast<DType>(d), workers};
      INFO(name_of(pattern.dtype) << " " << workers);
      const auto sum = sum_of(pattern, 5, 1000);
      CHECK(check_sum(pattern, 5, sum) == "");
      CHECK(check_sum(pattern, 6, sum) != "");
    }
  }
}

TEST_CASE("a worker that is counted twice in place of another is found") {
  // So many that each type has room for them.
  for (std::uint8_t d = 0; d < kDTypeCount; ++d) {
    for (const std::uint32_t workers : {2u, 4u, 8u, 14u}) {
      const Pattern pattern{static_cast<DType>(d), workers};
      for (std::uint32_t lost = 1; lost < workers; ++lost) {
        INFO(name_of(pattern.dtype) << " " << workers << ", rank " << lost);
        auto ranks = all_ranks(pattern);
        ranks[lost] = 0;
        CHECK(check_sum(pattern, 5, sum_of(pattern, ranks, 5, 100)) != "");
      }
    }
  }
  const Pattern pattern{DType::f32, 512};
  auto ranks = all_ranks(pattern);
  ranks[511] = 255;
  CHECK(check_sum(pattern, 5, sum_of(pattern, ranks, 5, 100)) != "");
}

TEST_CASE("a wrong, a misplaced and an old element are found") {
  const Pattern pattern{DType::f32, 1};
  std::vector<std::byte> out(4 * 65536);
  fill_contribution(pattern, 0, 9, out);
  REQUIRE(check_sum(pattern, 9, out).empty());
  auto* values = reinterpret_cast<float*>(out.data());
  values[777] += 1;
  CHECK_THAT(check_sum(pattern, 9, out), Catch::Contains("element 777 of 65536 in round 9"));
  values[777] -= 1;
  std::rotate(values, values + 16384, values + 65536);
  CHECK_FALSE(check_sum(pattern, 9, out).empty());
  fill_contribution(pattern, 0, 8, out);
  CHECK_FALSE(check_sum(pattern, 9, out).empty());
}

TEST_CASE("a piece of a sum is compared as what it is") {
  const Pattern pattern{DType::f32, 1};
  std::vector<std::byte> out(4 * 1000);
  fill_contribution(pattern, 0, 9, out);
  const auto piece = std::span(out).subspan(4 * 300);
  CHECK(check_sum(pattern, 9, piece, 300).empty());
  CHECK_FALSE(check_sum(pattern, 9, piece, 301).empty());
  reinterpret_cast<float*>(out.data())[777] += 1;
  CHECK_THAT(check_sum(pattern, 9, piece, 300), Catch::Contains("element 777 of 1000"));
}

TEST_CASE("raw bytes are told from others") {
  std::vector<std::byte> out(100'000);
  fill_raw(out);
  CHECK(check_raw(out).empty());
  out[99'999] ^= std::byte{1};
  CHECK_THAT(check_raw(out), Catch::Contains("byte 99999"));
}

}  // namespace bps::bench

// What the workers push, chosen so that every element of every round has a sum that is known and exact in
// every type, and so that an element that is lost, doubled, misplaced or of another round is seen. Pure.
//
// Worker r pushes x + r mod R at element i of round t, where x = hash(i, t) mod K, so that a worker that is
// counted twice in place of another is seen, too. R and K are so small that the sum over all workers is exact
// in the type; R is the number of workers wherever the type has room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "proto/base/dtype.h"

namespace bps::bench {

// How many workers there may be.
std::uint32_t max_workers(DType dtype);

struct Pattern {
  DType dtype = DType::f32;
  std::uint32_t workers = 1;
};

// Fills `out` (whole elements) with what worker `rank` pushes.
void fill_contribution(const Pattern& pattern, std::uint32_t rank, std::uint64_t round,
                       std::span<std::byte> out);

// Empty if `sum`, which begins at element `first`, is the sum of all workers' contributions; else says which
// element is wrong and how.
std::string check_sum(const Pattern& pattern, std::uint64_t round, std::span<const std::byte> sum,
                      std::uint64_t first = 0);

// The same of what worker `rank` pushes.
std::string check_contribution(const Pattern& pattern, std::uint32_t rank, std::uint64_t round,
                               std::span<const std::byte> bytes, std::uint64_t first = 0);

// What the raw servers send: byte j is a function of j.
void fill_raw(std::span<std::byte> out);
// Empty if `bytes` is what fill_raw makes.
std::string check_raw(std::span<const std::byte> bytes);

}  // namespace bps::bench

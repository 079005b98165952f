#include "proto/base/partitioner.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <random>

namespace bps {
namespace {

using Counts = std::vector<std::uint64_t>;

// Partitions cover the tensor once, in order, and none is empty or larger than it may be.
void check_cover(const Partitioner& partitioner, std::uint64_t bytes, std::size_t width, std::uint64_t most) {
  std::uint64_t end = 0, largest = 0;
  for (std::uint64_t i = 0; i < partitioner.count(); ++i) {
    CHECK(partitioner.offset(i) == end);
    CHECK(partitioner.bytes_of(i) > 0);
    CHECK(partitioner.bytes_of(i) <= most);
    CHECK(partitioner.bytes_of(i) % width == 0);
    largest = std::max(largest, partitioner.bytes_of(i));
    end += partitioner.bytes_of(i);
  }
  CHECK(end == bytes);
  CHECK(end == partitioner.bytes());
  CHECK(largest == partitioner.largest());
}

}  // namespace

TEST_CASE("partitioner: slices cover the tensor once, in order") {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::i8}) {
    for (const std::uint64_t elements : {0, 1, 511, 512, 513, 1024, 4096, 5000}) {
      const Partitioner partitioner(elements, dtype, 4096);
      check_cover(partitioner, elements * size_of(dtype), size_of(dtype), 4096);
      for (std::uint64_t i = 0; i + 1 < partitioner.count(); ++i)
        CHECK(partitioner.bytes_of(i) == 4096);
    }
  }
}

TEST_CASE("partitioner: the largest tensor does not overflow") {
  const Partitioner partitioner(1ull << 40, DType::f64, 64ull << 20);
  CHECK(partitioner.count() == (1ull << 43) / (64ull << 20));
  CHECK(partitioner.bytes_of(partitioner.count() - 1) == 64ull << 20);
}

TEST_CASE("partitioner: whole parts are packed while they fit, and only a longer one is cut") {
  const auto sizes = [](const Partitioner& partitioner) {
    Counts all;
    for (std::uint64_t i = 0; i < partitioner.count(); ++i)
      all.push_back(partitioner.bytes_of(i));
    return all;
  };
  // Equal ones.
  CHECK(sizes({10 * 1000, DType::f32, 4096, {1000}}) == Counts(10, 4000));
  CHECK(sizes({5 * 500, DType::f32, 4096, {500}}) == Counts{4000, 4000, 2000});
  CHECK(sizes({3 * 1024, DType::f32, 4096, {1024}}) == Counts(3, 4096));
  CHECK(sizes({2 * 1500, DType::f32, 4096, {1500}}) == Counts{4096, 1904, 4096, 1904});
  CHECK(sizes({0, DType::f32, 4096, {0}}).empty());
  // Of different lengths.
  CHECK(sizes({1500, DType::f32, 4096, {500, 500, 0, 400, 100}}) == Counts{4000, 2000});
  CHECK(sizes({1520, DType::f32, 4096, {1200, 300, 20}}) == Counts{4096, 1984});
  CHECK(sizes({2200, DType::f32, 4096, {0, 1200, 1000}}) == Counts{4096, 704, 4000});
  CHECK(sizes({0, DType::f32, 4096, {0, 0}}).empty());
}

TEST_CASE("partitioner: the order goes through all parts at once") {
  const auto order = [](const Partitioner& partitioner) {
    Counts all;
    for (std::uint64_t place = 0; place < partitioner.count(); ++place)
      all.push_back(partitioner.in_order(place));
    return all;
  };
  CHECK(order({5000, DType::f32, 4096}) == Counts{0, 1, 2, 3, 4});
  CHECK(order({0, DType::f32, 4096}).empty());
  CHECK(order({5 * 500, DType::f32, 4096, {500}}) == Counts{0, 1, 2});
  CHECK(order({3 * 2500, DType::f32, 4096, {2500}}) == Counts{0, 3, 6, 1, 4, 7, 2, 5, 8});
  // 0: 0 of the first part, 1: 4096 of it and all of the second, 2 to 4: the third.
  CHECK(order({4100, DType::f32, 4096, {1200, 500, 2400}}) == Counts{0, 2, 1, 3, 4});
}

TEST_CASE("partitioner: parts of any length need few partitions") {
  std::mt19937 random(7);
  for (int run = 0; run < 200; ++run) {
    Counts parts(2 + random() % 300);
    for (std::uint64_t& part : parts)
      part = random() % 3 == 0 ? random() % 5000 : random() % 20;
    const std::uint64_t elements = std::accumulate(parts.begin(), parts.end(), std::uint64_t{0});
    const Partitioner partitioner(elements, DType::f32, 4096, parts);
    check_cover(partitioner, elements * 4, 4, 4096);
    CHECK(partitioner.count() <= 2 * elements * 4 / 4096 + 1);
  }
}

}  // namespace bps

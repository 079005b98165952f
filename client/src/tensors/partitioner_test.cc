#include "client/src/tensors/partitioner.h"

#include <catch2/catch.hpp>

namespace bps {

TEST_CASE("partitioner: slices cover the tensor once, in order") {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::i8}) {
    for (const std::uint64_t elements : {0, 1, 511, 512, 513, 1024, 4096, 5000}) {
      const Partitioner partitioner(elements, dtype, 4096);
      std::uint64_t end = 0;
      for (std::uint64_t i = 0; i < partitioner.count(); ++i) {
        CHECK(partitioner.offset(i) == end);
        CHECK(partitioner.bytes_of(i) > 0);
        CHECK(partitioner.bytes_of(i) % size_of(dtype) == 0);
        if (i + 1 < partitioner.count()) CHECK(partitioner.bytes_of(i) == 4096);
        end += partitioner.bytes_of(i);
      }
      CHECK(end == elements * size_of(dtype));
      CHECK(end == partitioner.bytes());
    }
  }
}

TEST_CASE("partitioner: the largest tensor does not overflow") {
  const Partitioner partitioner(1ull << 40, DType::f64, 64ull << 20);
  CHECK(partitioner.count() == (1ull << 43) / (64ull << 20));
  CHECK(partitioner.bytes_of(partitioner.count() - 1) == 64ull << 20);
}

}  // namespace bps

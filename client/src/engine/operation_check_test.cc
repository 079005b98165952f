#include "client/src/engine/operation_check.h"

#include <catch2/catch.hpp>

namespace bps {
namespace {

TEST_CASE("buffers: the same memory or apart, to the byte") {
  const TensorShape tensor{"t", DType::f32, 4};
  alignas(16) std::byte memory[64] = {};
  CHECK(check_overlap(tensor, memory, memory).ok());
  CHECK(check_overlap(tensor, memory, memory + 16).ok());
  CHECK(check_overlap(tensor, memory + 16, memory).ok());
  CHECK_FALSE(check_overlap(tensor, memory, memory + 15).ok());
  CHECK_FALSE(check_overlap(tensor, memory + 1, memory).ok());
  CHECK(check_buffer(tensor, "in", memory, 16).ok());
  CHECK_FALSE(check_buffer(tensor, "in", memory, 15).ok());
  CHECK_FALSE(check_buffer(tensor, "in", nullptr, 16).ok());
}

TEST_CASE("roots are ranks of the job") {
  CHECK(check_root(0, 1).ok());
  CHECK(check_root(3, 4).ok());
  CHECK_FALSE(check_root(4, 4).ok());
  CHECK_FALSE(check_root(-1, 4).ok());
}

}  // namespace
}  // namespace bps

#include "client/src/operation_check.h"

#include <catch2/catch.hpp>
#include <string>

namespace bps {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("names: what the protocol does not carry is refused with the numbers") {
  CHECK(check_name("tensor name", "layer1.weight", 13).ok());
  CHECK(check_name("tensor name",
                   "Gr\xc3\xb6\xc3\x9f"
                   "e",
                   10)
            .ok());
  CHECK_THAT(check_name("tensor name", "", 10).error().message, Contains("1 to 10 bytes, this one has 0"));
  CHECK_THAT(check_name("tensor name", std::string(11, 'x'), 10).error().message, Contains("has 11"));
  CHECK_THAT(check_name("tensor name", "a\nb", 10).error().message, Contains("0x0a at byte 1"));
  CHECK_THAT(check_name("tensor name", "ab\x7f", 10).error().message, Contains("0x7f at byte 2"));
}

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

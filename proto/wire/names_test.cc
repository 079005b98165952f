#include "proto/wire/names.h"

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

}  // namespace
}  // namespace bps

#include "proto/base/host_identity.h"

#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>

namespace bps {

TEST_CASE("a host is named as people name it, and stays the same") {
  std::array<char, 256> name{};
  REQUIRE(gethostname(name.data(), name.size() - 1) == 0);
  const std::string identity = host_identity();
  CHECK(identity.rfind(name.data(), 0) == 0);
  CHECK(identity.size() < 256);
  CHECK(identity == host_identity());
}

}  // namespace bps

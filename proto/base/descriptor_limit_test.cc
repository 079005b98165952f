#include "proto/base/descriptor_limit.h"

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <cstdint>

namespace bps {
namespace {

TEST_CASE("connections of strangers get a share of the descriptors") {
  CHECK(max_unknown_connections(0) == 1);
  CHECK(max_unknown_connections(32) == 8);
  CHECK(max_unknown_connections(1024) == 256);
  CHECK(max_unknown_connections(4096) == 1024);
  CHECK(max_unknown_connections(1 << 20) == 1024);
  CHECK(max_unknown_connections(SIZE_MAX) == 1024);
}

TEST_CASE("the descriptor limit is raised as far as allowed") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit low = before;
  low.rlim_cur = before.rlim_max / 2;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  const std::size_t raised = raise_descriptor_limit();
  rlimit now{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &now) == 0);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(raised == before.rlim_max);
  CHECK(now.rlim_cur == before.rlim_max);
}

}  // namespace
}  // namespace bps

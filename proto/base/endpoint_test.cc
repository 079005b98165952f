#include "proto/base/endpoint.h"

#include <catch2/catch.hpp>

namespace bps {

TEST_CASE("endpoints are written HOST:PORT") {
  CHECK(parse_endpoint("10.0.0.1:4710").value() == Endpoint{"10.0.0.1", 4710});
  CHECK(parse_endpoint(":0").value() == Endpoint{"127.0.0.1", 0});
  CHECK(parse_endpoint("[::1]:80").value() == Endpoint{"::1", 80});
  CHECK(to_string(Endpoint{"::1", 80}) == "[::1]:80");
  CHECK(to_string(Endpoint{"gpu-01", 4710}) == "gpu-01:4710");
  for (const char* bad : {"", "host", "host:", "host:x", "host:65536", "host:-1", "::1:80", "host:80 "}) {
    CAPTURE(bad);
    REQUIRE_FALSE(parse_endpoint(bad).ok());
    CHECK(parse_endpoint(bad).error().code == ErrorCode::invalid_argument);
  }
}

TEST_CASE("only loopback addresses count as loopback") {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"})
    CHECK(is_loopback({host, 1}));
  for (const char* host : {"0.0.0.0", "10.0.0.1", "::", "127.example.com", "128.0.0.1"})
    CHECK_FALSE(is_loopback({host, 1}));
}

}  // namespace bps

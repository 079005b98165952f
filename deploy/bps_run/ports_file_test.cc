#include "deploy/bps_run/ports_file.h"

#include <catch2/catch.hpp>

namespace bps {
namespace {

TEST_CASE("the named line is found among others") {
  const std::string_view text = "http 127.0.0.1:81\nlisten 127.0.0.1:82\n";
  CHECK(to_string(find_port(text, "listen").value()) == "127.0.0.1:82");
  CHECK(to_string(find_port(text, "http").value()) == "127.0.0.1:81");
  CHECK(to_string(find_port("listen [::1]:82", "listen").value()) == "[::1]:82");
}

TEST_CASE("a file without a usable address is an error that says what is wrong") {
  CHECK(find_port("", "listen").error().message == "no line 'listen HOST:PORT'");
  CHECK(find_port("listening 127.0.0.1:82\nlisten\n", "listen").error().code == ErrorCode::protocol);
  CHECK(find_port("listen 127.0.0.1:0\n", "listen").error().message == "'listen 127.0.0.1:0' names no port");
  CHECK_FALSE(find_port("listen 127.0.0.1:port\n", "listen").ok());
}

TEST_CASE("a file that is not there yet is no error, a broken one is") {
  const auto missing = read_port("no/such/file", "listen");
  REQUIRE(missing.ok());
  CHECK_FALSE(missing.value().has_value());
  CHECK(read_port("/", "listen").error().message.find("/: ") == 0);
}

}  // namespace
}  // namespace bps

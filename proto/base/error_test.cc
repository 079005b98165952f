#include "proto/base/error.h"

#include <catch2/catch.hpp>
#include <cerrno>

namespace bps {
namespace {

TEST_CASE("an error of the system names what was tried, and what helps") {
  const Error missing = os_error("open x", ENOENT, "check the name");
  CHECK(missing.code == ErrorCode::os);
  CHECK(to_string(missing) == "open x: No such file or directory; check the name");
  // Whatever was tried: it is not at fault.
  CHECK(to_string(os_error("open x", EMFILE, "check the name")) ==
        "open x: Too many open files; raise `ulimit -n`");
  CHECK(os_error("socket", ENFILE).advice == "raise `ulimit -n`");
}

}  // namespace
}  // namespace bps

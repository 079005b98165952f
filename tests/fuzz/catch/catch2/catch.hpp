// Stands in for Catch2 where the harnesses of unit tests are used by a fuzz target, which has no test case to
// fail: what they require and is not so ends the process, as the fuzzer expects it.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace bps::fuzz {
[[noreturn]] inline void broken(const std::string& what, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::abort();
}
}  // namespace bps::fuzz

// Harnesses name it for their tests.
namespace Catch {
void Contains(const std::string&);
}

#define CHECK(expression) \
  (static_cast<bool>(expression) ? void(0) : ::bps::fuzz::broken(#expression, __FILE__, __LINE__))
#define REQUIRE(expression) CHECK(expression)
#define REQUIRE_FALSE(expression) CHECK(!(expression))
#define CHECK_FALSE(expression) CHECK(!(expression))
#define FAIL(text) ::bps::fuzz::broken(text, __FILE__, __LINE__)

// BPS_ASSERT: for our own bugs only, never for anything a peer, file or the OS said. On in every build:
// a broken invariant must not become a wrong sum.
#pragma once

namespace bps {
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line);
}  // namespace bps

#define BPS_ASSERT(expression) \
  (static_cast<bool>(expression) ? void(0) : ::bps::assertion_failed(#expression, __FILE__, __LINE__))

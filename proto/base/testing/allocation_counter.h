// For tests: counts what a program allocates, and refuses it. Defines operator new, so a test program
// includes it in one source file only.
//
// clang's thread sanitizer brings an operator new that cannot be replaced; there BPS_COUNTS_ALLOCATIONS is 0,
// nothing is defined, and what counts has to be left out. The other builds count.
#pragma once

#if !defined(__has_feature)
#define BPS_COUNTS_ALLOCATIONS 1
#elif __has_feature(thread_sanitizer)
#define BPS_COUNTS_ALLOCATIONS 0
#else
#define BPS_COUNTS_ALLOCATIONS 1
#endif

#if BPS_COUNTS_ALLOCATIONS

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace bps::testing {
inline std::atomic<std::uint64_t> allocations{0};
// The one after so many of this thread's finds no memory; below zero: all find some.
inline thread_local std::int64_t allocations_left = -1;
}  // namespace bps::testing

// Not inlined: GCC would otherwise see free() of what it thinks comes from the built-in new.
#define BPS_OUT_OF_LINE __attribute__((noinline))
BPS_OUT_OF_LINE void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++bps::testing::allocations;
  if (bps::testing::allocations_left >= 0 && bps::testing::allocations_left-- == 0) return nullptr;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
BPS_OUT_OF_LINE void* operator new(std::size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
BPS_OUT_OF_LINE void operator delete(void* memory) noexcept { std::free(memory); }
BPS_OUT_OF_LINE void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#undef BPS_OUT_OF_LINE

#endif  // BPS_COUNTS_ALLOCATIONS

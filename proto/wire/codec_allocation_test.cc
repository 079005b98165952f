// clang's thread sanitizer brings an operator new that cannot be replaced; the other builds count.
#if !defined(__has_feature)
#define BPS_COUNT_ALLOCATIONS 1
#elif !__has_feature(thread_sanitizer)
#define BPS_COUNT_ALLOCATIONS 1
#endif
#ifdef BPS_COUNT_ALLOCATIONS

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>
#include <vector>

#include "proto/wire/codec.h"
#include "proto/wire/frame.h"

namespace {
std::atomic<std::uint64_t> allocations{0};
}  // namespace

// Not inlined: GCC would otherwise see free() of what it thinks comes from the built-in new.
__attribute__((noinline)) void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace bps {

TEST_CASE("a data frame costs no allocation") {
  const std::vector<Message> messages = {PushPull{.round = Round{5}}, Aggregate{.round = Round{5}}, Later{},
                                         Again{}, Credit{7}};
  Encoder encoder;
  Message out;
  std::uint64_t before = 0;
  bool good = true;
  for (int pass = 0; pass < 100; ++pass) {
    if (pass == 1) before = allocations;
    for (const Message& message : messages) {
      const auto frame = encoder.encode(message, 4096);
      const auto prefix = read_prefix(frame.first<kFramePrefixBytes>(), kMaxLaneHeaderBytes);
      good = good && prefix.ok() &&
             check_header(frame.first<kFramePrefixBytes>(), frame.subspan(kFramePrefixBytes)).ok();
      good = good && decode(frame.subspan(kFramePrefixBytes), out).ok() && out.index() == message.index();
    }
  }
  CHECK(good);
  CHECK(before > 0);
  CHECK(allocations - before == 0);
}

}  // namespace bps

#endif  // BPS_COUNT_ALLOCATIONS

#include "client/src/gpu/byte_ring.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>

namespace bps {
namespace {

TEST_CASE("byte ring: pieces are aligned, never wrap, and come back in any order") {
  ByteRing ring(1024);
  CHECK(ring.take(1) == 0);
  CHECK(ring.take(300) == 256);
  CHECK_FALSE(ring.take(257));
  CHECK(ring.take(256) == 768);
  CHECK_FALSE(ring.take(1));
  ring.give_back(256);
  CHECK_FALSE(ring.take(1));
  ring.give_back(0);
  CHECK(ring.take(600) == 0);
  ring.give_back(768);
  ring.give_back(0);
  CHECK(ring.is_empty());
  CHECK(ring.take(1024) == 0);
  CHECK_FALSE(ByteRing(100).take(200));
}

TEST_CASE("byte ring: no two pieces overlap") {
  std::mt19937 random(5);
  ByteRing ring(16 * 1024);
  std::map<std::size_t, std::size_t> taken;
  for (int i = 0; i < 20'000; ++i) {
    const std::size_t bytes = 1 + random() % 4000;
    if (const auto at = ring.take(bytes)) {
      CHECK(*at + bytes <= ring.bytes());
      const auto after = taken.lower_bound(*at);
      if (after != taken.end()) CHECK(*at + bytes <= after->first);
      if (after != taken.begin()) CHECK(std::prev(after)->first + std::prev(after)->second <= *at);
      taken[*at] = bytes;
    }
    if (!taken.empty() && random() % 2 == 0) {
      const auto some = std::next(taken.begin(), static_cast<std::ptrdiff_t>(random() % taken.size()));
      ring.give_back(some->first);
      taken.erase(some);
    }
  }
  for (const auto& [at, bytes] : taken)
    ring.give_back(at);
  CHECK(ring.is_empty());
}

}  // namespace
}  // namespace bps

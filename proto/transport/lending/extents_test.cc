#include "proto/transport/lending/extents.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>

namespace bps {
namespace {

TEST_CASE("pieces are taken from the lowest place that fits, aligned, and given back in any order") {
  Extents extents(1024);
  CHECK(extents.idle());
  CHECK(extents.take(1) == 0u);
  CHECK(extents.take(100) == 64u);
  CHECK(extents.take(64) == 192u);
  CHECK_FALSE(extents.take(1024 - 255));
  CHECK(extents.take(1024 - 256) == 256u);
  CHECK_FALSE(extents.take(1));
  extents.give(64, 100);
  CHECK_FALSE(extents.take(129));
  CHECK(extents.take(65) == 64u);
  extents.give(0, 1);
  extents.give(192, 64);
  extents.give(64, 65);
  CHECK(extents.take(256) == 0u);
  extents.give(0, 256);
  CHECK_FALSE(extents.idle());
  extents.give(256, 1024 - 256);
  CHECK(extents.idle());
  CHECK(extents.take(1024) == 0u);
}

TEST_CASE("no two pieces overlap, and nothing is lost, whatever is taken and given back") {
  std::mt19937 random(1);
  for (int run = 0; run < 20; ++run) {
    constexpr std::size_t kBytes = 16 * 1024;
    Extents extents(kBytes);
    std::map<std::size_t, std::size_t> taken;
    for (int step = 0; step < 2000; ++step) {
      if (random() % 2 == 0) {
        const std::size_t bytes = 1 + random() % 3000;
        const auto offset = extents.take(bytes);
        if (!offset) continue;
        REQUIRE(*offset % Extents::kAlignment == 0);
        REQUIRE(*offset + bytes <= kBytes);
        const auto after = taken.lower_bound(*offset);
        REQUIRE((after == taken.end() || *offset + bytes <= after->first));
        REQUIRE((after == taken.begin() || std::prev(after)->first + std::prev(after)->second <= *offset));
        taken.emplace(*offset, bytes);
      } else if (!taken.empty()) {
        const auto piece = std::next(taken.begin(), static_cast<std::ptrdiff_t>(random() % taken.size()));
        extents.give(piece->first, piece->second);
        taken.erase(piece);
      }
      REQUIRE(extents.idle() == taken.empty());
    }
    for (const auto& [offset, bytes] : taken)
      extents.give(offset, bytes);
    CHECK(extents.idle());
    CHECK(extents.take(kBytes) == 0u);
  }
}

}  // namespace
}  // namespace bps

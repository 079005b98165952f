#include "proto/transport/shm/shm_slab.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

namespace bps {
namespace {

using Taken = ShmSlab::Taken;
constexpr std::size_t kMiB = 1024 * 1024;

TEST_CASE("a slab grows with what is needed, up to its limit") {
  ShmSlab slab(3 * kMiB);
  CHECK(slab.held_bytes() == 0);
  std::vector<ShmSlab::Piece> pieces(12);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    REQUIRE(slab.take(256 * 1024, pieces[i]) == Taken::ok);
    std::memset(pieces[i].data(), static_cast<int>(i), pieces[i].bytes);
    CHECK(slab.held_bytes() == (i / 4 + 1) * kMiB);
  }
  ShmSlab::Piece one_more;
  CHECK(slab.take(1, one_more) == Taken::full);
  for (std::size_t i = 0; i < pieces.size(); ++i)
    CHECK(pieces[i].data()[pieces[i].bytes - 1] == static_cast<std::byte>(i));
  slab.give(pieces[5]);
  CHECK(slab.take(256 * 1024 + 1, one_more) == Taken::full);
  REQUIRE(slab.take(256 * 1024, one_more) == Taken::ok);
  CHECK(one_more.data() == pieces[5].data());  // what is in the cache is used first
}

TEST_CASE("what is larger than the limit waits until nothing else is lent, then gets what it needs") {
  ShmSlab slab(2 * kMiB);
  ShmSlab::Piece small;
  ShmSlab::Piece large;
  REQUIRE(slab.take(1000, small) == Taken::ok);
  CHECK(slab.take(5 * kMiB + 1, large) == Taken::full);
  slab.give(small);
  REQUIRE(slab.take(5 * kMiB + 1, large) == Taken::ok);
  CHECK(slab.held_bytes() == 5 * kMiB + 4096);
  std::memset(large.data(), 1, large.bytes);
  CHECK(slab.take(kMiB, small) == Taken::full);
  slab.give(large);
  REQUIRE(slab.take(kMiB, small) == Taken::ok);  // and what it has stays for the next
  CHECK(slab.held_bytes() == 5 * kMiB + 4096);
}

TEST_CASE("pieces that became too small make room for larger ones, those that are lent stay") {
  ShmSlab slab(4 * kMiB);
  ShmSlab::Piece pieces[4];
  for (auto& piece : pieces)
    REQUIRE(slab.take(kMiB, piece) == Taken::ok);
  std::memset(pieces[1].data(), 7, kMiB);
  slab.give(pieces[0]);
  slab.give(pieces[2]);
  ShmSlab::Piece large;
  CHECK(slab.take(3 * kMiB, large) == Taken::full);
  slab.give(pieces[3]);
  REQUIRE(slab.take(3 * kMiB, large) == Taken::ok);
  CHECK(slab.held_bytes() == 4 * kMiB);
  CHECK(pieces[1].data()[kMiB - 1] == std::byte{7});
}

}  // namespace
}  // namespace bps

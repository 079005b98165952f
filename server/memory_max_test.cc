#include "server/memory_max.h"

#include <catch2/catch.hpp>

namespace bps::memory_max_test {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kGiB = 1 << 30;

TEST_CASE("memory-max is what the limit allows, less a margin for all else") {
  CHECK(default_memory_max({}) == 4 * kGiB);
  CHECK(default_memory_max({64 * kGiB, "the machine"}) == 60 * kGiB);
  CHECK(default_memory_max({512 * kMiB, "ulimit -v"}) == 448 * kMiB);
  CHECK(default_memory_max({100 * kMiB, "ulimit -v"}) == 50 * kMiB);
  CHECK(default_memory_max({0, "ulimit -v"}) == 0);
}

TEST_CASE("a larger memory-max is doubted, naming the limit") {
  const MemoryBound limit{16 * kGiB, "control group /jobs"};
  CHECK_FALSE(doubt_about(15 * kGiB, limit));
  CHECK(doubt_about(15 * kGiB + 1, limit));
  CHECK(doubt_about(20 * kGiB, limit) ==
        "--memory-max 20.0 GiB is more than this server can have: control group /jobs allows 16.0 GiB, so "
        "give it "
        "at most 15.0 GiB; tensors beyond what there is are refused");
  CHECK_FALSE(doubt_about(1ull << 50, {}));
}

}  // namespace
}  // namespace bps::memory_max_test

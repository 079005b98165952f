#include "proto/base/memory/address_space.h"

#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <cerrno>

#include "proto/base/loop/loop_thread.h"
#include "proto/base/memory/region.h"
#include "proto/base/testing/address_limit.h"
#include "proto/base/testing/not_run.h"

namespace bps::address_space_test {
namespace {

using Catch::Contains;

constexpr std::uint64_t kMiB = 1 << 20;

TEST_CASE("address space: what was refused for another reason than a limit is not blamed on one") {
  const Error many = cannot_map("cannot map it", kMiB, ENOMEM);
  CHECK(many.message == "cannot map it: Cannot allocate memory");
  CHECK(many.advice == "see vm.max_map_count and vm.overcommit_memory");
  CHECK(cannot_map("cannot map it", kMiB, EACCES).advice.empty());
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

TEST_CASE("address space: what a limit refuses names the limit, what it leaves, and what is needed") {
  // Memory that a thread before has left would do.
  const auto before = LoopThread::start("before");
  REQUIRE(before.ok());
  const testing::AddressLimit limit(4 * kMiB);
  if (!limit.is_set()) return testing::not_run("address space", "this process may not limit itself");
  // Enough now, but perhaps not when it was refused.
  CHECK_THAT(cannot_map("cannot map it", kMiB, ENOMEM).advice,
             Contains("vm.max_map_count") && Contains("`ulimit -v`, which leaves"));
  const Error refused = cannot_map("cannot map it", 100 * kMiB, ENOMEM);
  CHECK_THAT(refused.message, Contains("cannot map it: ulimit -v leaves") &&
                                  Contains("100.0 MiB are needed: Cannot allocate"));
  CHECK(refused.advice == "raise `ulimit -v`");
  std::vector<std::unique_ptr<LoopThread>> threads;
  for (;;) {
    auto thread = LoopThread::start("one");
    if (thread.ok()) {
      REQUIRE(threads.size() < 10);
      threads.push_back(std::move(thread).value());
      continue;
    }
    CHECK_THAT(thread.error().message, Contains("cannot start thread one: ulimit -v leaves"));
    CHECK(thread.error().advice == "raise `ulimit -v`");
    break;
  }
}

TEST_CASE("address space: what a region needs beside its bytes counts, to blame the limit") {
  // To be aligned to a huge page it needs one more.
  const testing::AddressLimit limit(101 * kMiB);
  if (!limit.is_set()) return testing::not_run("address space", "this process may not limit itself");
  const auto refused = allocate_ordinary_region(100 * kMiB);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::out_of_memory);
  CHECK_THAT(refused.error().message, Contains("the system gives no 100.0 MiB of memory: ulimit -v leaves") &&
                                          Contains("102.0 MiB are needed"));
  CHECK(refused.error().advice == "raise `ulimit -v`");
}

#endif

}  // namespace
}  // namespace bps::address_space_test

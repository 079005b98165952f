#include "proto/base/usable_cores.h"

#include <sched.h>

#include <array>
#include <catch2/catch.hpp>
#include <thread>

namespace bps {

TEST_CASE("usable cores: a thread runs on the CPUs that it was bound to, and others as before") {
  const auto all = usable_cpus();
  REQUIRE(all.size() == usable_cores());
  std::thread([&] {
    for (const std::uint32_t cpu : all) {
      REQUIRE(run_on(std::array{cpu}).ok());
      CHECK(::sched_getcpu() == static_cast<int>(cpu));
      CHECK(usable_cpus() == std::vector{cpu});
    }
    REQUIRE(run_on(all).ok());
    CHECK(usable_cpus() == all);
    // One that is not there.
    CHECK_FALSE(run_on(std::array{1023u}).ok());
    CHECK_FALSE(run_on(std::array{5000u}).ok());
    CHECK_FALSE(run_on(std::array{100'000u}).ok());
    CHECK_FALSE(run_on({}).ok());
    CHECK(usable_cpus() == all);
  }).join();
  CHECK(usable_cpus() == all);
}

}  // namespace bps

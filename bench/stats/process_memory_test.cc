#include "bench/stats/process_memory.h"

#include <unistd.h>

#include <catch2/catch.hpp>

namespace bps::bench {

TEST_CASE("memory now and at its peak") {
  const auto memory =
      parse_process_memory("Name:\ta b\nVmPeak:\t  9 kB\nVmHWM:\t  300 kB\nVmRSS:\t  200 kB\nX: 1\n");
  REQUIRE(memory.ok());
  CHECK(memory->resident == 200 * 1024);
  CHECK(memory->peak == 300 * 1024);
  CHECK_FALSE(parse_process_memory("VmRSS:\t200 kB\n").ok());
  CHECK_FALSE(parse_process_memory("").ok());
}

TEST_CASE("this process holds some") {
  const auto memory = process_memory(::getpid());
  REQUIRE(memory.ok());
  CHECK(memory->resident > 0);
  CHECK(memory->peak >= memory->resident);
  CHECK_FALSE(process_memory(0).ok());
}

}  // namespace bps::bench

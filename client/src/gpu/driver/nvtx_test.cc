#include "client/src/gpu/driver/nvtx.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "client/src/gpu/testing/cuda_scenario.h"

namespace bps {
namespace {

// A profiler. What it is given to call knows nothing but the range.
struct Seen {
  std::uint64_t next = 1;
  std::map<std::uint64_t, std::string> open;
  std::multiset<std::string> ended;
};
Seen& seen() {
  static Seen all;
  return all;
}
std::uint64_t start(const char* name) {
  seen().open[seen().next] = name;
  return seen().next++;
}
void end(std::uint64_t range) {
  const auto found = seen().open.find(range);
  REQUIRE(found != seen().open.end());
  seen().ended.insert(found->second);
  seen().open.erase(found);
}

TEST_CASE("nvtx: without the library, or with another, nothing is shown") {
  CHECK_FALSE(Nvtx::open({"libno-such-library.so", "libm.so.6"}).is_on());
  const Nvtx::Range nothing(Nvtx(), "nothing");
}

TEST_CASE("nvtx: stages are shown by tensor and partitions, and end") {
  seen() = {};
  testing::CudaHostOptions options;
  options.nvtx = Nvtx(start, end);
  testing::CudaHost host(1, options);
  testing::CudaScenario scenario(host);
  CHECK(scenario.run());
  CHECK(seen().open.empty());
  CHECK(seen().ended ==
        std::multiset<std::string>{"bps reduce layer3.weight round 0, partitions 0 to 5",
                                   "bps copy to host layer3.weight round 0, partitions 0 to 5",
                                   "bps stage partitions 0 to 5"});
}

TEST_CASE("nvtx: what breaks off ends, too") {
  seen() = {};
  testing::CudaHostOptions options;
  options.nvtx = Nvtx(start, end);
  testing::CudaHost host(2, options);
  host.ranks[1].cuda->fail_next(CudaCall::copy_to_device, 1, CudaCode::launch_failed, true);
  testing::CudaScenario scenario(host);
  CHECK_FALSE(scenario.run());
  CHECK(seen().open.empty());
  CHECK(seen().ended.size() > 2);
}

}  // namespace
}  // namespace bps

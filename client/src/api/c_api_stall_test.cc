// Waits that expire say whom they waited for.
#include "client/src/api/testing/c_api_harness.h"

namespace bps::testing {
namespace {

using Catch::Contains;

TEST_CASE("c api: an expired wait names the round and the rank that has not pushed") {
  const bps::ExpectLog lost("is gone: connection lost");
  const TwoWorkers job;
  std::vector<float> data(10, 1.0f);
  bps_handle* handle = job.pending("delta", data);
  CHECK_THAT(explained([&](bps_error* why) { return bps_wait(handle, 300, why); }, "missing rank 1"),
             Contains("waited 0.3 s for round 0 of delta: 1 of 2 pushed, missing rank 1 (host ") &&
                 Contains(", last seen ") && Contains("0 of 1 partitions answered; waiting for server 1"));
  bps_handle_free(handle);
}

TEST_CASE("c api: an expired barrier names who has not come") {
  const bps::ExpectLog lost("is gone: connection lost");
  const TwoWorkers job;
  CHECK_THAT(explained([&](bps_error* why) { return bps_barrier(job.a, 300, why); }, "missing rank 1"),
             Contains("waited 0.3 s at a barrier of job ") &&
                 Contains("barrier 0: 1 of 2 arrived, missing rank 1 (host "));
}

}  // namespace
}  // namespace bps::testing

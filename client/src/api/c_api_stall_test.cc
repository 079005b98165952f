// Waits that expire say whom they waited for.
#include "client/src/api/testing/c_api_harness.h"

namespace bps::testing {
namespace {

using Catch::Contains;

TEST_CASE("c api: an expired wait names the round and the rank that has not pushed") {
  const bps::ExpectLog lost("is gone: connection lost");
  const bps::ExpectLog left("can never complete: rank 1 has left the job");
  const TwoWorkers job;
  std::vector<float> data(10, 1.0f);
  bps_handle* handle = job.pending("delta", data);
  CHECK(bps_wait(handle, 1, nullptr) == BPS_DEADLINE);  // without a text
  CHECK_THAT(explained([&](bps_error* why) { return bps_wait(handle, 300, why); }, "missing rank 1"),
             Contains("waited 0.3 s for round 0 of delta: 1 of 2 pushed, missing rank 1 (host ") &&
                 Contains(", last seen ") && Contains("0 of 1 partitions answered; waiting for server 1"));
  bps_handle_free(handle);
}

TEST_CASE(
    "c api: ranks that wait for each other's rounds end with another code than those that wait for one") {
  const bps::ExpectLog lost("is gone: connection lost");
  const bps::ExpectLog warned("has waited 0.");  // each says it in its log, too
  const TwoWorkers job("300ms");
  std::vector<float> data(10, 1.0f);
  std::vector<float> other(10, 2.0f), more(10, 3.0f), yet_more(10, 4.0f);
  const OpenClient& a = job.a;
  const OpenClient& b = job.b;
  bps_handle* const handles[] = {a.push_pull(a.declare("b", 10), data, data),
                                 b.push_pull(b.declare("a", 10), other, other)};
  const TimePoint deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (bps_handle* const handle : handles) {
    Refusal why;
    do {
      INFO(why.message());
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      REQUIRE(bps_wait(handle, 400, why) == BPS_DEADLINE);
    } while (why.error.exit_code == 75);
    CHECK(why.error.exit_code == 78);
    CHECK_THAT(why.message(), Contains("waited 0.4 s for round 0 of ") &&
                                  Contains("; it has not declared it, and waits for round 0 of ") &&
                                  Contains("; ranks have waited for each other for "));
    CHECK_THAT(why.error.advice, Contains("in the same order on all ranks"));
  }
  // It has ended nothing: another thread may push what was missing.
  bps_handle* const late[] = {a.push_pull(a.declare("a", 10), more, more),
                              b.push_pull(b.declare("b", 10), yet_more, yet_more)};
  for (bps_handle* const handle : {handles[0], handles[1], late[0], late[1]}) {
    CHECK(bps_wait(handle, 60'000, nullptr) == BPS_OK);
    bps_handle_free(handle);
  }
}

TEST_CASE("c api: an expired wait for a drop names who has not dropped the tensor") {
  const TwoWorkers job;
  const bps_tensor tensor = job.a.declare("delta", 10);
  REQUIRE(job.b.declare("delta", 10) == tensor);
  bps_handle* handle = nullptr;
  REQUIRE(bps_drop(job.a, tensor, &handle, nullptr) == BPS_OK);
  CHECK_THAT(explained([&](bps_error* why) { return bps_wait(handle, 300, why); }, "missing rank 1"),
             Contains("waited 0.3 s for the drop of delta: 1 of 2 dropped it, missing rank 1 (host "));
  REQUIRE(bps_drop(job.b, tensor, nullptr, nullptr) == BPS_OK);
  CHECK(bps_wait(handle, kSoon, nullptr) == BPS_OK);
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

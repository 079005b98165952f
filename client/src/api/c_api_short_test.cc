// Calls that are shorter than their tensor, through the C API and real sockets.
#include <bps/bps.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <string>
#include <vector>

#include "client/src/api/testing/c_api_harness.h"

namespace bps::short_call_test {
namespace {

using Catch::Contains;
using namespace bps::testing;

constexpr std::size_t kElements = 100'000;  // several partitions

}  // namespace

TEST_CASE("c api: a call takes as many elements as its buffers have") {
  const TwoWorkers job;
  const bps_tensor tensor = job.a.declare("w", kElements);
  CHECK(job.b.declare("w", kElements) == tensor);
  Refusal why;
  for (const std::size_t count : {kElements, std::size_t{1}, std::size_t{20'000}, std::size_t{0}, kElements,
                                  std::size_t{65'536}, std::size_t{0}}) {
    std::vector<float> a(count, 1), b(count, 2);
    bps_handle* const first = job.a.push_pull(tensor, a, a);
    bps_handle* const second = job.b.push_pull(tensor, b, b);
    CHECK(bps_wait(first, kSoon, why) == BPS_OK);
    CHECK(bps_handle_ranks(first) == 2);
    bps_handle_free(first);
    CHECK(wait_and_free(second, why) == BPS_OK);
    CHECK(a == std::vector<float>(count, 3));
    CHECK(b == a);

    std::vector<float> copy(count, 9);
    bps_handle* handles[2] = {};
    const bps_buffer from = OpenClient::buffer(a), to = OpenClient::buffer(copy);
    REQUIRE(bps_broadcast(job.a, tensor, &from, 0, &handles[0], why) == BPS_OK);
    REQUIRE(bps_broadcast(job.b, tensor, &to, 0, &handles[1], why) == BPS_OK);
    for (bps_handle* handle : handles)
      CHECK(wait_and_free(handle, why) == BPS_OK);
    CHECK(copy == a);

    std::vector<float> sum(count, 9);
    const bps_buffer out = OpenClient::buffer(sum);
    REQUIRE(bps_reduce(job.a, tensor, &from, nullptr, BPS_SUM, 1, &handles[0], why) == BPS_OK);
    REQUIRE(bps_reduce(job.b, tensor, &to, &out, BPS_SUM, 1, &handles[1], why) == BPS_OK);
    for (bps_handle* handle : handles)
      CHECK(wait_and_free(handle, why) == BPS_OK);
    CHECK(sum == std::vector<float>(count, 6));
  }
}

TEST_CASE("c api: a short call that is read in place has as many pieces as it needs") {
  const OpenClient client;
  const bps_tensor tensor = client.declare("w", kElements);
  Refusal why;
  std::vector<float> in(kElements, 4);
  for (const std::size_t count : {kElements, std::size_t{3}, std::size_t{0}, std::size_t{70'000}}) {
    bps_buffer from = OpenClient::buffer(in);
    from.bytes = count * sizeof(float);
    bps_handle* handle = nullptr;
    REQUIRE(bps_push_pull(client, tensor, &from, nullptr, BPS_SUM, &handle, why) == BPS_OK);
    REQUIRE(bps_wait(handle, kSoon, why) == BPS_OK);
    std::size_t seen = 0;
    bps_view view = BPS_VIEW_INIT;
    for (std::size_t piece = 0;; ++piece) {
      REQUIRE(bps_handle_view(handle, piece, &view, why) == BPS_OK);
      if (view.bytes == 0) {
        CHECK(view.pieces == piece);
        break;
      }
      CHECK(view.offset == seen);
      CHECK(*static_cast<const float*>(view.pointer) == 4);
      seen += view.bytes;
    }
    CHECK(seen == count * sizeof(float));
    CHECK(bps_handle_release(handle, why) == BPS_OK);
    bps_handle_free(handle);
  }
}

TEST_CASE("c api: ranks that pass different lengths hear both, and the name can be had back") {
  const TwoWorkers job;
  const bps_tensor tensor = job.a.declare("w", kElements);
  CHECK(job.b.declare("w", kElements) == tensor);
  Refusal why;
  const std::size_t other = GENERATE(std::size_t{0}, std::size_t{9}, kElements);
  const ExpectLog differ("round 0 of w (partition ");
  std::vector<float> a(10, 1), b(other, 2);
  bps_handle* const first = job.a.push_pull(tensor, a, a);
  bps_handle* const second = job.b.push_pull(tensor, b, b);
  for (bps_handle* handle : {first, second}) {
    CHECK(wait_and_free(handle, why) == BPS_CONFIGURATION);
    CHECK_THAT(why.message(), Contains("rank 0 calls sum of 10") &&
                                  Contains("rank 1 calls sum of " + std::to_string(other)));
  }
  for (const OpenClient* client : {&job.a, &job.b}) {
    bps_handle* handle = nullptr;
    REQUIRE(bps_drop(*client, tensor, &handle, why) == BPS_OK);
    bps_handle_free(handle);
  }
  const bps_tensor again = job.a.declare("w", kElements);
  CHECK(job.b.declare("w", kElements) == again);
  bps_handle* const third = job.a.push_pull(again, a, a);
  b.assign(10, 2);
  CHECK(wait_and_free(job.b.push_pull(again, b, b), why) == BPS_OK);
  CHECK(wait_and_free(third, why) == BPS_OK);
  CHECK(a == b);
}

}  // namespace bps::short_call_test

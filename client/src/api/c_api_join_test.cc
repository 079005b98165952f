// Ranks that run out of data, through the C API and real sockets.
#include <bps/bps.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "client/src/api/testing/c_api_harness.h"
#include "proto/base/log/log.h"

using Catch::Contains;
using namespace bps::testing;

namespace {

bps_handle* join(bps_client* client) {
  bps_handle* handle = nullptr;
  Refusal why;
  const bps_status status = bps_join(client, BPS_WORLD, &handle, why);
  INFO(why.message());
  REQUIRE(status == BPS_OK);
  return handle;
}

bps_handle* push_pull(bps_client* client, std::vector<float>& memory, bps_reduce_op operation) {
  const bps_buffer buffer = OpenClient::buffer(memory);
  bps_handle* handle = nullptr;
  Refusal why;
  const bps_status status =
      bps_group_push_pull(client, BPS_WORLD, BPS_F32, &buffer, &buffer, operation, &handle, why);
  INFO(why.message());
  REQUIRE(status == BPS_OK);
  return handle;
}

void check_last(bps_handle* handle, int rank) {
  Refusal why;
  CHECK(bps_wait(handle, kSoon, why) == BPS_OK);
  INFO(why.message());
  CHECK(bps_handle_last_joined(handle) == rank);
  bps_handle_free(handle);
}

}  // namespace

TEST_CASE("c api: a rank that has joined counts as zero, until all have joined") {
  const Workers job(3);
  for (int round = 0; round < 3; ++round) {
    // Rank 0 has data for one step, rank 1 for three, rank 2 for five.
    std::vector<std::vector<float>> memory;
    std::vector<bps_handle*> handles;
    const std::size_t counts[] = {10, 5000, 0, 3, 2'000'000};
    for (std::size_t step = 0; step < 5; ++step) {
      for (std::size_t rank = step < 1 ? 0 : step < 3 ? 1 : 2; rank < 3; ++rank)
        memory.emplace_back(counts[step], static_cast<float>(rank + 1));
    }
    std::vector<bps_handle*> joins(3);
    std::size_t at = 0;
    for (std::size_t step = 0; step < 5; ++step) {
      for (std::size_t rank = 0; rank < 3; ++rank) {
        if (step == 1 + 2 * rank) joins[rank] = join(job[rank]);
        if (step >= 1 + 2 * rank) continue;
        handles.push_back(push_pull(job[rank], memory[at++], step % 2 == 0 ? BPS_SUM : BPS_AVERAGE));
      }
    }
    for (bps_handle* const handle : handles)
      check_ok(handle);
    joins[2] = join(job[2]);
    for (bps_handle* const handle : joins)
      check_last(handle, 2);
    at = 0;
    for (std::size_t step = 0; step < 5; ++step) {
      float sum = 0;
      const std::size_t first = step < 1 ? 0 : step < 3 ? 1 : 2;
      for (std::size_t rank = first; rank < 3; ++rank)
        sum += static_cast<float>(rank + 1);
      for (std::size_t rank = first; rank < 3; ++rank)
        CHECK(memory[at++] == std::vector<float>(counts[step], step % 2 == 0 ? sum : sum / 3));
    }
  }
}

TEST_CASE("c api: a call that needs a rank that has joined fails the group, naming both") {
  const bps::ExpectLog failed("has joined");
  const Workers job(3);
  bps_handle* const joined = join(job[0]);
  const int what = GENERATE(range(0, 4));
  CAPTURE(what);
  std::vector<std::vector<float>> memory(3, std::vector<float>(6, 1)), parts(3, std::vector<float>(2, 1));
  std::vector<bps_handle*> handles;
  for (std::size_t rank = 1; rank < 3; ++rank) {
    const bps_buffer buffer = OpenClient::buffer(memory[rank]);
    const bps_buffer part = OpenClient::buffer(parts[rank]);
    bps_handle* handle = nullptr;
    Refusal why;
    bps_status status = BPS_OK;
    if (what == 0) handle = push_pull(job[rank], memory[rank], BPS_MAX);
    if (what == 1) status = bps_group_broadcast(job[rank], BPS_WORLD, &buffer, 0, &handle, why);
    if (what == 2) status = bps_gather(job[rank], BPS_WORLD, &buffer, nullptr, nullptr, 0, 0, &handle, why);
    if (what == 3)
      status = bps_group_all_gather(job[rank], BPS_WORLD, &part, &buffer, nullptr, 0, &handle, why);
    INFO(why.message());
    REQUIRE(status == BPS_OK);
    handles.push_back(handle);
  }
  handles.push_back(joined);
  for (bps_handle* const handle : handles) {
    Refusal why;
    CHECK(wait_and_free(handle, why) == BPS_CONFIGURATION);
    CHECK_THAT(why.message(), Contains("group 'world': rank 0 has joined, and call number 1"));
  }
}

TEST_CASE("c api: what needs nothing of a rank that has joined goes on; it makes no calls itself") {
  const Workers job(2);
  bps_handle* const joined = join(job[0]);
  std::vector<float> one(4, 2), other(4, 0);
  const bps_buffer buffer = OpenClient::buffer(one), place = OpenClient::buffer(other);
  bps_handle* handle = nullptr;
  Refusal why;
  REQUIRE(bps_group_broadcast(job[1], BPS_WORLD, &buffer, 1, &handle, why) == BPS_OK);
  check_ok(handle);
  REQUIRE(bps_group_reduce(job[1], BPS_WORLD, BPS_F32, &buffer, &place, BPS_AVERAGE, 1, &handle, why) ==
          BPS_OK);
  check_ok(handle);
  CHECK(other == std::vector<float>(4, 1));
  REQUIRE(bps_group_all_gather(job[1], BPS_WORLD, &buffer, nullptr, nullptr, 0, &handle, why) == BPS_OK);
  CHECK(bps_wait(handle, kSoon, why) == BPS_OK);
  bps_view view = BPS_VIEW_INIT;
  CHECK(bps_handle_view(handle, 0, &view, why) == BPS_OK);
  CHECK(view.bytes == 0);
  CHECK(bps_handle_view(handle, 1, &view, why) == BPS_OK);
  CHECK(view.bytes == 16);
  bps_handle_free(handle);
  const bps_scale half{sizeof(bps_scale), 1, 1, 0.5};
  bps_buffer scaled = buffer;
  scaled.scale = &half;
  REQUIRE(bps_group_push_pull(job[1], BPS_WORLD, BPS_F32, &scaled, &place, BPS_SUM, &handle, why) == BPS_OK);
  check_ok(handle);
  CHECK(other == std::vector<float>(4, 1));
  bps_status status = bps_group_push_pull(job[0], BPS_WORLD, BPS_F32, &buffer, &place, BPS_SUM, &handle, why);
  if (status == BPS_OK) status = wait_and_free(handle, why);
  CHECK(status == BPS_INVALID_ARGUMENT);
  CHECK_THAT(why.message(), Contains("this rank has joined"));
  CHECK(bps_wait(joined, 1200, why) == BPS_DEADLINE);
  CHECK_THAT(why.message(), Contains("the join of group 'world': ranks 1 have not joined"));
  CHECK(bps_handle_last_joined(joined) == -1);
  check_last(join(job[1]), 1);
  check_last(joined, 1);
}

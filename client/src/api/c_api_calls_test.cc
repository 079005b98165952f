// Calls on groups, through the C API and real sockets.
#include <bps/bps.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "client/src/api/testing/c_api_harness.h"
#include "proto/base/log/log.h"

using Catch::Contains;
using namespace bps::testing;

namespace {

bps_buffer buffer_of(std::vector<float>& memory) {
  return {
      sizeof(bps_buffer), memory.data(), memory.size() * sizeof(float), BPS_MEMORY_HOST, 0, nullptr, nullptr};
}

bps_handle* push_pull(bps_client* client, bps_group group, std::vector<float>& memory) {
  const bps_buffer buffer = buffer_of(memory);
  bps_handle* handle = nullptr;
  Refusal why;
  const bps_status status =
      bps_group_push_pull(client, group, BPS_F32, &buffer, &buffer, BPS_SUM, &handle, why);
  INFO(why.message());
  REQUIRE(status == BPS_OK);
  return handle;
}

bps_status end_of(bps_handle* handle, std::string* message = nullptr) {
  Refusal why;
  const bps_status status = wait_and_free(handle, why);
  if (message != nullptr) *message = why.message();
  return status;
}

bps_group group_of(bps_client* client, const char* name, std::vector<std::int32_t> ranks) {
  bps_group_spec spec = BPS_GROUP_SPEC_INIT;
  spec.name = name;
  spec.ranks = ranks.data();
  spec.rank_count = ranks.size();
  bps_group group = 0;
  Refusal why;
  const bps_status status = bps_declare_group(client, &spec, &group, why);
  INFO(why.message());
  REQUIRE(status == BPS_OK);
  return group;
}

}  // namespace

TEST_CASE("c api: calls of any length, many at once, on the job and on groups") {
  const TwoWorkers job;
  const bps_group a = group_of(job.a, "both", {1, 0});
  const bps_group b = group_of(job.b, "both", {1, 0});
  constexpr std::size_t kCounts[] = {0, 1, 1024, 1025, 70'000, 9'000'000};
  std::vector<std::vector<float>> memory;
  std::vector<bps_handle*> handles;
  for (const std::size_t count : kCounts) {
    for (int i = 0; i < 4; ++i)
      memory.emplace_back(count, static_cast<float>(i + 1));
  }
  for (std::size_t i = 0; i < memory.size(); i += 4) {
    handles.push_back(push_pull(job.a, BPS_WORLD, memory[i]));
    handles.push_back(push_pull(job.a, a, memory[i + 1]));
    handles.push_back(push_pull(job.b, BPS_WORLD, memory[i + 2]));
    handles.push_back(push_pull(job.b, b, memory[i + 3]));
  }
  for (bps_handle* const handle : handles)
    CHECK(end_of(handle) == BPS_OK);
  for (std::size_t i = 0; i < memory.size(); ++i)
    CHECK(memory[i] == std::vector<float>(memory[i].size(), i % 2 == 0 ? 4.f : 6.f));
  bps_handle* dropped = nullptr;
  REQUIRE(bps_drop_group(job.a, a, &dropped, nullptr) == BPS_OK);
  REQUIRE(bps_drop_group(job.b, b, nullptr, nullptr) == BPS_OK);
  CHECK(end_of(dropped) == BPS_OK);
}

TEST_CASE("c api: a broadcast moves bytes, a reduce gives its root the sum") {
  const TwoWorkers job;
  std::vector<float> from{1, 2, 3}, to(3);
  const bps_buffer out = buffer_of(from), in = buffer_of(to);
  bps_handle* handles[2]{};
  REQUIRE(bps_group_broadcast(job.a, BPS_WORLD, &out, 0, &handles[0], nullptr) == BPS_OK);
  REQUIRE(bps_group_broadcast(job.b, BPS_WORLD, &in, 0, &handles[1], nullptr) == BPS_OK);
  CHECK(end_of(handles[0]) == BPS_OK);
  CHECK(end_of(handles[1]) == BPS_OK);
  CHECK(to == from);
  REQUIRE(bps_group_reduce(job.a, BPS_WORLD, BPS_F32, &out, nullptr, BPS_SUM, 1, &handles[0], nullptr) ==
          BPS_OK);
  REQUIRE(bps_group_reduce(job.b, BPS_WORLD, BPS_F32, &in, &in, BPS_SUM, 1, &handles[1], nullptr) == BPS_OK);
  CHECK(end_of(handles[0]) == BPS_OK);
  CHECK(end_of(handles[1]) == BPS_OK);
  CHECK(to == std::vector<float>{2, 4, 6});
}

TEST_CASE("c api: ranks that call different things hear it, and which call it was; other groups go on") {
  const bps::ExpectLog differ("calls number 2");
  const TwoWorkers job;
  const bps_group a = group_of(job.a, "both", {0, 1});
  const bps_group b = group_of(job.b, "both", {0, 1});
  std::vector<float> one(10, 1), two(10, 1);
  bps_handle* const first = push_pull(job.a, a, one);
  CHECK(end_of(push_pull(job.b, b, two)) == BPS_OK);
  CHECK(end_of(first) == BPS_OK);
  // In one slot, and in slots of other sizes.
  std::vector<float> longer(GENERATE(std::size_t{11}, std::size_t{5000}), 1);
  const auto begun = std::chrono::steady_clock::now();
  bps_handle* const left = push_pull(job.a, a, one);
  bps_handle* const right = push_pull(job.b, b, longer);
  for (bps_handle* const handle : {left, right}) {
    std::string message;
    CHECK(end_of(handle, &message) == BPS_CONFIGURATION);
    CHECK_THAT(message, Contains("group 'both'") && Contains("number 2: sum of 10 f32") &&
                            Contains("rank 1") &&
                            Contains("number 2: sum of " + std::to_string(longer.size()) + " f32"));
  }
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(5));
  const bps_buffer buffer = buffer_of(one);
  bps_handle* refused = nullptr;
  bps_status status = bps_group_push_pull(job.a, a, BPS_F32, &buffer, &buffer, BPS_SUM, &refused, nullptr);
  if (status == BPS_OK) status = end_of(refused);
  CHECK(status == BPS_CONFIGURATION);
  bps_handle* const other = push_pull(job.a, BPS_WORLD, one);
  CHECK(end_of(push_pull(job.b, BPS_WORLD, two)) == BPS_OK);
  CHECK(end_of(other) == BPS_OK);
  // The name is usable again.
  REQUIRE(bps_drop_group(job.a, a, nullptr, nullptr) == BPS_OK);
  REQUIRE(bps_drop_group(job.b, b, nullptr, nullptr) == BPS_OK);
  bps_handle* const again = push_pull(job.a, group_of(job.a, "both", {0, 1}), one);
  CHECK(end_of(push_pull(job.b, group_of(job.b, "both", {0, 1}), two)) == BPS_OK);
  CHECK(end_of(again) == BPS_OK);
}

TEST_CASE("c api: a wait for a rank that has not called names the call and the rank") {
  const TwoWorkers job;
  std::vector<float> one(10, 1), two(10, 1);
  bps_handle* const handle = push_pull(job.a, BPS_WORLD, one);
  Refusal why;
  CHECK(bps_wait(handle, 1500, why) == BPS_DEADLINE);
  CHECK_THAT(why.message(),
             Contains("call number 1: sum of 10 f32 in group 'world'") && Contains("missing rank 1"));
  CHECK(end_of(push_pull(job.b, BPS_WORLD, two)) == BPS_OK);
  CHECK(end_of(handle) == BPS_OK);
}

TEST_CASE("c api: calls and groups that are wrong by themselves are refused, and count for nothing") {
  const TwoWorkers job;
  std::vector<float> one(10, 1), nine(9, 1);
  const bps_buffer ten = buffer_of(one), less = buffer_of(nine);
  bps_handle* handle = nullptr;
  Refusal why;
  CHECK(bps_group_push_pull(job.a, BPS_WORLD, BPS_F32, &ten, &less, BPS_SUM, &handle, why) ==
        BPS_INVALID_ARGUMENT);
  CHECK_THAT(why.message(), Contains("buffer 'out' has 36 bytes, call on group 'world' has 40"));
  CHECK(bps_group_push_pull(job.a, BPS_WORLD, BPS_F32, &ten, nullptr, BPS_SUM, &handle, why) ==
        BPS_INVALID_ARGUMENT);
  CHECK(bps_group_push_pull(job.a, BPS_WORLD, BPS_F64, &less, &less, BPS_SUM, &handle, why) ==
        BPS_INVALID_ARGUMENT);
  CHECK(bps_group_push_pull(job.a, BPS_WORLD, BPS_F32, &ten, &ten, BPS_XOR, &handle, why) ==
        BPS_INVALID_ARGUMENT);
  CHECK(bps_group_push_pull(job.a, 7, BPS_F32, &ten, &ten, BPS_SUM, &handle, why) == BPS_INVALID_ARGUMENT);
  CHECK(bps_group_broadcast(job.a, BPS_WORLD, &ten, 2, &handle, why) == BPS_INVALID_ARGUMENT);
  CHECK(bps_group_reduce(job.a, BPS_WORLD, BPS_F32, &ten, &ten, BPS_SUM, -1, &handle, why) ==
        BPS_INVALID_ARGUMENT);
  CHECK(handle == nullptr);
  const auto refused = [&](const char* name, std::vector<std::int32_t> ranks) {
    bps_group_spec spec = BPS_GROUP_SPEC_INIT;
    spec.name = name;
    spec.ranks = ranks.data();
    spec.rank_count = ranks.size();
    bps_group group = 0;
    CHECK(bps_declare_group(job.a, &spec, &group, why) == BPS_INVALID_ARGUMENT);
    return std::string(why.message());
  };
  CHECK_THAT(refused("other", {1}), Contains("rank 0"));
  CHECK_THAT(refused("far", {0, 2}), Contains("rank 2"));
  CHECK_THAT(refused("", {0, 1}), Contains("no name"));
  CHECK_THAT(refused("world", {0, 1}), Contains("there already"));
  CHECK(bps_drop_group(job.a, BPS_WORLD, nullptr, why) == BPS_INVALID_ARGUMENT);
  std::vector<float> two(10, 1);
  bps_handle* const mine = push_pull(job.a, BPS_WORLD, one);
  CHECK(end_of(push_pull(job.b, BPS_WORLD, two)) == BPS_OK);
  CHECK(end_of(mine) == BPS_OK);
}

TEST_CASE("c api: a close waits for calls, and ends those that others do not make") {
  const bps::ExpectLog closes("closes in the middle of"), gone("is gone");
  const TwoWorkers job;
  std::vector<float> one(10, 1);
  bps_handle* const handle = push_pull(job.a, BPS_WORLD, one);
  CHECK(bps_close(job.a, 200, nullptr) == BPS_OK);
  CHECK(end_of(handle) == BPS_CANCELLED);
}

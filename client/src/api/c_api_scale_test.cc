// The scale of an input, through the C API and real sockets.
#include <bps/bps.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "client/src/api/testing/c_api_harness.h"

using Catch::Contains;
using namespace bps::testing;

namespace {

bps_scale scale_of(double weight, double prescale, double postscale) {
  return {sizeof(bps_scale), weight, prescale, postscale};
}

bps_buffer scaled(std::vector<float>& memory, const bps_scale& scale) {
  bps_buffer buffer = OpenClient::buffer(memory);
  buffer.scale = &scale;
  return buffer;
}

bps_handle* start(bps_client* client, bps_tensor tensor, std::vector<float>& memory, const bps_scale& scale,
                  bps_reduce_op operation) {
  const bps_buffer in = scaled(memory, scale), out = OpenClient::buffer(memory);
  bps_handle* handle = nullptr;
  Refusal why;
  const bps_status status = bps_push_pull(client, tensor, &in, &out, operation, &handle, why);
  INFO(why.message());
  REQUIRE(status == BPS_OK);
  return handle;
}

}  // namespace

TEST_CASE("c api: weights, prescales and postscales, over several partitions") {
  const TwoWorkers job;
  const std::size_t count = 100'000;
  const bps_tensor tensor = job.a.declare("w", count);
  CHECK(job.b.declare("w", count) == tensor);
  const auto run = [&](const bps_scale& a, const bps_scale& b, bps_reduce_op operation) {
    std::vector<float> one(count, 10), other(count, 4);
    bps_handle* const first = start(job.a, tensor, one, a, operation);
    Refusal why;
    CHECK(wait_and_free(start(job.b, tensor, other, b, operation), why) == BPS_OK);
    CHECK(wait_and_free(first, why) == BPS_OK);
    CHECK(one == other);
    CHECK(one.front() == one.back());
    return one.front();
  };
  CHECK(run(scale_of(3, 1, 1), scale_of(1, 1, 1), BPS_AVERAGE) == 8.5F);
  CHECK(run(scale_of(1, 2, 0.5), scale_of(1, -1, 0.5), BPS_SUM) == 8);
  CHECK(run(scale_of(0, 1, 2), scale_of(0.25, 3, 2), BPS_AVERAGE) == 24);
}

TEST_CASE("c api: what one rank cannot give is an error on both, and the tensor goes on") {
  const TwoWorkers job;
  const bps_tensor tensor = job.a.declare("w", 3);
  job.b.declare("w", 3);
  std::vector<float> a(3, 1), b(3, 2);
  for (const double bad : {-1.0, std::nan("")}) {
    bps_handle* const first = start(job.a, tensor, a, scale_of(1, 1, 1), BPS_AVERAGE);
    Refusal why;
    CHECK(wait_and_free(start(job.b, tensor, b, scale_of(bad, 1, 1), BPS_AVERAGE), why) ==
          BPS_INVALID_ARGUMENT);
    CHECK_THAT(why.message(), Contains("what rank 1 gives has a weight of"));
    CHECK(wait_and_free(first, why) == BPS_INVALID_ARGUMENT);
    CHECK_THAT(why.message(), Contains("what rank 1 gives has a weight of"));
  }
  bps_handle* const first = job.a.push_pull(tensor, a, a);
  Refusal why;
  CHECK(wait_and_free(job.b.push_pull(tensor, b, b), why) == BPS_OK);
  CHECK(wait_and_free(first, why) == BPS_OK);
  CHECK(a == std::vector<float>(3, 3));
}

TEST_CASE("c api: where there can be no scale it is refused, and nothing has begun") {
  const OpenClient client;
  const bps_tensor floats = client.declare("floats", 2, BPS_F32, BPS_MODE_SYNC, {2});
  const bps_tensor integers = client.declare("integers", 2, BPS_I32);
  const bps_tensor async = client.declare("async", 2, BPS_F32, BPS_MODE_ASYNC);
  std::vector<float> memory(2), other(2);
  const bps_scale two = scale_of(1, 2, 1);
  const bps_buffer plain = OpenClient::buffer(memory), given = scaled(memory, two);
  const bps_buffer apart = OpenClient::buffer(other), apart_scaled = scaled(other, two);
  bps_handle* handle = nullptr;
  Refusal why;
  const auto refuses = [&](bps_status status, const char* text) {
    CHECK(status == BPS_INVALID_ARGUMENT);
    CHECK_THAT(why.message(), Contains(text));
    CHECK(handle == nullptr);
  };
  refuses(bps_push_pull(client, floats, &given, &plain, BPS_MAX, &handle, why), "only sums and averages");
  refuses(bps_push_pull(client, integers, &given, &plain, BPS_SUM, &handle, why), "holds integers");
  refuses(bps_push_pull(client, async, &given, &plain, BPS_SUM, &handle, why), "is asynchronous");
  refuses(bps_push_pull(client, floats, &plain, &given, BPS_SUM, &handle, why), "buffer 'out' has a scale");
  refuses(bps_reduce_scatter(client, floats, &given, &apart, BPS_SUM, 0, &handle, why), "exact_order");
  refuses(bps_broadcast(client, floats, &given, 0, &handle, why), "has a scale");
  refuses(bps_all_gather(client, floats, &apart_scaled, &plain, &handle, why), "has a scale");
  const bps_scale weighted = scale_of(2, 1, 1);
  const bps_buffer heavy = scaled(memory, weighted);
  refuses(bps_push_pull(client, floats, &heavy, &plain, BPS_SUM, &handle, why), "no average");
  bps_scale empty = two;
  empty.struct_size = 0;
  const bps_buffer unset = scaled(memory, empty);
  refuses(bps_push_pull(client, floats, &unset, &plain, BPS_SUM, &handle, why), "struct_size of the scale");
  // One of a program that was built before there were any.
  memory = {3, 5};
  bps_buffer old = given;
  old.struct_size = offsetof(bps_buffer, scale);
  CHECK(bps_push_pull(client, floats, &old, &apart, BPS_SUM, &handle, why) == BPS_OK);
  CHECK(wait_and_free(handle, why) == BPS_OK);
  CHECK(other == memory);
}

// What a call of the C API does whose thread is given no memory: it says so, and has begun nothing.
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "client/include/bps/bps.h"
#include "proto/base/testing/allocation_counter.h"

namespace bps::testing {
namespace {

#if BPS_COUNTS_ALLOCATIONS

// Each of the call's allocations is refused in its turn, until it makes no more.
void refuse_each(const std::function<bps_status(bps_handle**, bps_error*)>& begin) {
  int refused = 0;
  for (std::int64_t nth = 0;; ++nth) {
    REQUIRE(nth < 1000);
    INFO("allocation " << nth);
    bps_handle* handle = nullptr;
    bps_error why = BPS_ERROR_INIT;
    allocations_left = nth;
    const bps_status status = begin(&handle, &why);
    const bool was_refused = allocations_left < 0;
    allocations_left = -1;
    refused += was_refused ? 1 : 0;
    if (status != BPS_OK) {
      INFO(why.message);
      REQUIRE(was_refused);
      CHECK(status == BPS_OUT_OF_MEMORY);
      CHECK(handle == nullptr);
      continue;
    }
    // Also if there was no memory to wake the loop: a wait that expires does.
    REQUIRE(handle != nullptr);
    bps_status ended = BPS_DEADLINE;
    for (int i = 0; i < 120 && ended == BPS_DEADLINE; ++i)
      ended = bps_wait(handle, 500, nullptr);
    CHECK(ended == BPS_OK);
    bps_handle_free(handle);
    if (!was_refused) break;
  }
  CHECK(refused > 1);
}

TEST_CASE("no memory: an operation whose call finds none has not begun, and its tensor takes the next one") {
  bps_options options;
  bps_options_init(&options, sizeof options);
  options.scheduler = "embedded:";
  options.rank = 0;
  options.world_size = 1;
  bps_client* client = nullptr;
  REQUIRE(bps_open(&options, &client, nullptr) == BPS_OK);
  bps_tensor_spec spec = BPS_TENSOR_SPEC_INIT;
  spec.name = "weight";
  spec.dtype = BPS_F32;
  spec.count = 100;
  bps_tensor tensor = 0;
  REQUIRE(bps_declare(client, &spec, 1, &tensor, 60'000, nullptr) == BPS_OK);
  std::vector<float> in(100, 2), out(100);
  const auto buffer = [](std::vector<float>& memory) {
    return bps_buffer{
        sizeof(bps_buffer), memory.data(), memory.size() * sizeof(float), BPS_MEMORY_HOST, 0, nullptr};
  };
  const bps_buffer from = buffer(in), to = buffer(out);
  refuse_each([&](bps_handle** handle, bps_error* why) {
    return bps_push_pull(client, tensor, &from, &to, BPS_SUM, handle, why);
  });
  CHECK(out == in);
  refuse_each([&](bps_handle** handle, bps_error* why) {
    return bps_broadcast(client, tensor, &to, 0, handle, why);
  });
  CHECK(bps_close(client, 60'000, nullptr) == BPS_OK);
  bps_free(client);
}

#endif

}  // namespace
}  // namespace bps::testing

// Memory that the library gives, and answers that are read in it, through the C API.
#include <bps/bps.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <future>
#include <string>
#include <vector>

#include "client/src/api/testing/c_api_harness.h"

using Catch::Contains;
using namespace bps::testing;

namespace {

bps_handle* start_view(bps_client* client, bps_tensor tensor, std::vector<float>& in) {
  const bps_buffer from = OpenClient::buffer(in);
  bps_handle* handle = nullptr;
  Refusal why;
  const bps_status status = bps_push_pull(client, tensor, &from, nullptr, BPS_SUM, &handle, why);
  INFO(why.message());
  REQUIRE(status == BPS_OK);
  return handle;
}

// All of a view, checked to be without gaps.
std::vector<float> read_view(bps_handle* handle) {
  std::vector<float> all;
  bps_view view = BPS_VIEW_INIT;
  Refusal why;
  for (std::size_t i = 0;; ++i) {
    const bps_status status = bps_handle_view(handle, i, &view, why);
    INFO(why.message());
    REQUIRE(status == BPS_OK);
    if (view.bytes == 0) {
      CHECK(view.pieces == i);
      CHECK(view.pointer == nullptr);
      return all;
    }
    CHECK(view.offset == all.size() * sizeof(float));
    const auto* floats = static_cast<const float*>(view.pointer);
    all.insert(all.end(), floats, floats + view.bytes / sizeof(float));
  }
}

bps_options small_partitions(const char* retain) {
  bps_options options = embedded_options();
  set(options, "partition-bytes", "4KiB");
  set(options, "retain", retain);
  return options;
}

}  // namespace

TEST_CASE("c api: allocated memory is zeroed, aligned, and moves like any other") {
  const OpenClient client;
  const bps_tensor tensor = client.declare("t", 100'000);
  const std::size_t bytes = 100'000 * sizeof(float);
  void* memory[2] = {};
  for (void*& each : memory) {
    REQUIRE(bps_allocate(client, bytes, &each, nullptr) == BPS_OK);
    REQUIRE(each != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(each) % 4096 == 0);
    CHECK(std::all_of(static_cast<char*>(each), static_cast<char*>(each) + bytes,
                      [](char c) { return c == 0; }));
  }
  auto* in = static_cast<float*>(memory[0]);
  auto* out = static_cast<float*>(memory[1]);
  for (int i = 0; i < 100'000; ++i)
    in[i] = static_cast<float>(i);
  const bps_buffer from{sizeof(bps_buffer), in, bytes, BPS_MEMORY_HOST, 0, nullptr};
  const bps_buffer to{sizeof(bps_buffer), out, bytes, BPS_MEMORY_HOST, 0, nullptr};
  bps_handle* handle = nullptr;
  REQUIRE(bps_push_pull(client, tensor, &from, &to, BPS_SUM, &handle, nullptr) == BPS_OK);
  CHECK(bps_wait(handle, kSoon, nullptr) == BPS_OK);
  CHECK(std::equal(in, in + 100'000, out));
  bps_handle_free(handle);

  void* none = memory;
  CHECK(bps_allocate(client, 0, &none, nullptr) == BPS_OK);
  CHECK(none == nullptr);
  Refusal why;
  CHECK(bps_allocate(client, SIZE_MAX / 2, &none, why) == BPS_OUT_OF_MEMORY);
  CHECK_FALSE(why.message().empty());
  CHECK(none == nullptr);
  CHECK(bps_allocate(client, 1, nullptr, why) == BPS_INVALID_ARGUMENT);
  CHECK(bps_allocate(nullptr, 1, &none, why) == BPS_INVALID_ARGUMENT);
  CHECK(bps_deallocate(client, in + 1) == BPS_INVALID_ARGUMENT);
  CHECK(bps_deallocate(client, &why) == BPS_INVALID_ARGUMENT);
  CHECK(bps_deallocate(nullptr, in) == BPS_INVALID_ARGUMENT);
  CHECK(bps_deallocate(client, nullptr) == BPS_OK);
  CHECK(bps_deallocate(client, in) == BPS_OK);
  CHECK(bps_deallocate(client, in) == BPS_INVALID_ARGUMENT);
  CHECK(bps_deallocate(client, out) == BPS_OK);
}

TEST_CASE("c api: allocated memory may be given back under way, after close and after free") {
  bps_options options = embedded_options();
  bps_client* client = nullptr;
  REQUIRE(bps_open(&options, &client, nullptr) == BPS_OK);
  void *kept = nullptr, *second = nullptr;
  REQUIRE(bps_allocate(client, 10'000, &kept, nullptr) == BPS_OK);
  REQUIRE(bps_allocate(client, 10'000, &second, nullptr) == BPS_OK);
  CHECK(bps_close(client, kSoon, nullptr) == BPS_OK);
  void* late = nullptr;
  CHECK(bps_allocate(client, 10'000, &late, nullptr) == BPS_CLOSED);
  CHECK(bps_deallocate(client, second) == BPS_OK);
  bps_free(client);
  std::memset(kept, 1, 10'000);
  CHECK(bps_deallocate(client, kept) == BPS_OK);

  const TwoWorkers job;
  const bps_tensor tensor = job.a.declare("t", 10'000);
  job.b.declare("t", 10'000);
  void* in = nullptr;
  REQUIRE(bps_allocate(job.a, 40'000, &in, nullptr) == BPS_OK);
  std::fill_n(static_cast<float*>(in), 10'000, 1.0f);
  const bps_buffer from{sizeof(bps_buffer), in, 40'000, BPS_MEMORY_HOST, 0, nullptr};
  std::vector<float> others(10'000, 2.0f), sum(10'000);
  const bps_buffer to = OpenClient::buffer(sum);
  bps_handle* a = nullptr;
  REQUIRE(bps_push_pull(job.a, tensor, &from, &to, BPS_SUM, &a, nullptr) == BPS_OK);
  CHECK(bps_deallocate(job.a, in) == BPS_OK);
  bps_handle* b = job.b.push_pull(tensor, others, others);
  CHECK(bps_wait(a, kSoon, nullptr) == BPS_OK);
  CHECK(sum == std::vector<float>(10'000, 3.0f));
  CHECK(bps_wait(b, kSoon, nullptr) == BPS_OK);
  bps_handle_free(a);
  bps_handle_free(b);
}

TEST_CASE("c api: an answer read in place, and what a view refuses") {
  for (const char* retain : {"true", "false"}) {
    const OpenClient client(small_partitions(retain));
    const bps_tensor tensor = client.declare("t", 10'000);
    std::vector<float> in(10'000), out(10'000);
    Refusal why;
    bps_view view = BPS_VIEW_INIT;
    for (int round = 0; round < 3; ++round) {
      for (std::size_t i = 0; i < in.size(); ++i)
        in[i] = static_cast<float>(i * 3 + static_cast<std::size_t>(round));
      bps_handle* handle = start_view(client, tensor, in);
      CHECK(bps_wait(handle, kSoon, nullptr) == BPS_OK);
      CHECK(read_view(handle) == in);
      CHECK(bps_handle_view(handle, 0, &view, nullptr) == BPS_OK);
      CHECK(view.pieces == 10);
      CHECK(bps_handle_view(handle, 11, &view, why) == BPS_INVALID_ARGUMENT);
      CHECK_THAT(why.message(), Contains("no piece 11: the answer has 10"));

      const bps_buffer from = OpenClient::buffer(in), to = OpenClient::buffer(out);
      bps_handle* second = nullptr;
      CHECK(bps_push_pull(client, tensor, &from, &to, BPS_SUM, &second, why) == BPS_INVALID_ARGUMENT);
      CHECK_THAT(why.message(), Contains("'t' is still being read in place"));
      CHECK(second == nullptr);
      CHECK(bps_handle_release(handle, nullptr) == BPS_OK);
      CHECK(bps_handle_release(handle, why) == BPS_INVALID_ARGUMENT);
      CHECK_THAT(why.message(), Contains("released already"));
      CHECK(bps_handle_view(handle, 0, &view, nullptr) == BPS_INVALID_ARGUMENT);
      bps_handle_free(handle);

      // Rounds with and without an output take turns.
      handle = client.push_pull(tensor, in, out);
      CHECK(bps_wait(handle, kSoon, nullptr) == BPS_OK);
      CHECK(out == in);
      CHECK(bps_handle_view(handle, 0, &view, why) == BPS_INVALID_ARGUMENT);
      CHECK_THAT(why.message(), Contains("there is no view of its answer"));
      CHECK(bps_handle_release(handle, nullptr) == BPS_INVALID_ARGUMENT);
      bps_handle_free(handle);
    }
    // Without a release the end of the handle is enough.
    bps_handle* handle = start_view(client, tensor, in);
    CHECK(bps_wait(handle, kSoon, nullptr) == BPS_OK);
    bps_handle_free(handle);
    handle = client.push_pull(tensor, in, out);
    CHECK(bps_wait(handle, kSoon, nullptr) == BPS_OK);
    bps_handle_free(handle);

    const bps_tensor empty = client.declare("empty", 0);
    std::vector<float> nothing;
    handle = start_view(client, empty, nothing);
    CHECK(bps_wait(handle, kSoon, nullptr) == BPS_OK);
    CHECK(read_view(handle).empty());
    CHECK(bps_handle_release(handle, nullptr) == BPS_OK);
    bps_handle_free(handle);
  }
}

TEST_CASE("c api: a view of an older program's size, and of none") {
  const OpenClient client(small_partitions("true"));
  const bps_tensor tensor = client.declare("t", 100);
  std::vector<float> in(100, 2.0f);
  bps_handle* handle = start_view(client, tensor, in);
  CHECK(bps_wait(handle, kSoon, nullptr) == BPS_OK);
  bps_view view = BPS_VIEW_INIT;
  view.struct_size = offsetof(bps_view, offset);
  view.offset = 77;
  CHECK(bps_handle_view(handle, 0, &view, nullptr) == BPS_OK);
  CHECK(view.bytes == 400);
  CHECK(view.offset == 77);
  view.struct_size = 0;
  CHECK(bps_handle_view(handle, 0, &view, nullptr) == BPS_INVALID_ARGUMENT);
  CHECK(bps_handle_view(handle, 0, nullptr, nullptr) == BPS_INVALID_ARGUMENT);
  CHECK(bps_handle_view(nullptr, 0, &view, nullptr) == BPS_INVALID_ARGUMENT);
  bps_handle_free(handle);
}

TEST_CASE("c api: a view of an operation that is under way, cancelled, or given up") {
  const bps::ExpectLog lost("is gone: connection lost");  // who gives up is, and the other one waits for it
  std::vector<float> in(1000, 1.0f), others(1000, 2.0f), sum(1000);
  bps_handle* kept = nullptr;
  Refusal why;
  bps_view view = BPS_VIEW_INIT;
  {
    const TwoWorkers job;
    const bps_tensor t = job.a.declare("t", 1000), u = job.a.declare("u", 1000);
    job.b.declare("t", 1000);
    job.b.declare("u", 1000);
    bps_handle* a = start_view(job.a, t, in);
    CHECK(bps_handle_view(a, 0, &view, why) == BPS_INVALID_ARGUMENT);
    CHECK_THAT(why.message(), Contains("has not ended yet"));
    CHECK(bps_handle_release(a, nullptr) == BPS_INVALID_ARGUMENT);
    bps_handle_free(a);  // nobody will read it
    bps_handle* b = job.b.push_pull(t, others, sum);
    CHECK(bps_wait(b, kSoon, nullptr) == BPS_OK);
    bps_handle_free(b);
    // The end of the round that nobody reads may still be on its way to us: barriers come behind it.
    auto other = std::async(std::launch::async, [&] { return bps_barrier(job.b, kSoon, nullptr); });
    CHECK(bps_barrier(job.a, kSoon, nullptr) == BPS_OK);
    CHECK(other.get() == BPS_OK);

    b = start_view(job.b, u, others);
    kept = start_view(job.a, u, in);
    CHECK(bps_wait(kept, kSoon, nullptr) == BPS_OK);
    CHECK(bps_wait(b, kSoon, nullptr) == BPS_OK);
    CHECK(read_view(b) == std::vector<float>(1000, 3.0f));
    bps_handle_free(b);

    a = start_view(job.a, t, in);
    CHECK(bps_close(job.a, 0, nullptr) == BPS_OK);
    CHECK(bps_handle_view(a, 0, &view, why) == BPS_CANCELLED);
    CHECK(bps_handle_release(a, why) == BPS_CANCELLED);
    bps_handle_free(a);
  }
  // It can be read for as long as it is held.
  CHECK(read_view(kept) == std::vector<float>(1000, 3.0f));
  CHECK(bps_handle_release(kept, nullptr) == BPS_OK);
  bps_handle_free(kept);
}

TEST_CASE("c api: a forked child leaves memory and views alone") {
  const OpenClient client;
  const bps_tensor tensor = client.declare("t", 100);
  std::vector<float> in(100, 2.0f);
  void* memory = nullptr;
  REQUIRE(bps_allocate(client, 100, &memory, nullptr) == BPS_OK);
  bps_handle* handle = start_view(client, tensor, in);
  CHECK(bps_wait(handle, kSoon, nullptr) == BPS_OK);
  const pid_t child = ::fork();
  if (child == 0) {
    bps_view view = BPS_VIEW_INIT;
    void* other = nullptr;
    int wrong = 0;
    wrong += bps_allocate(client, 100, &other, nullptr) != BPS_CLOSED;
    wrong += bps_deallocate(client, memory) != BPS_CLOSED;
    wrong += bps_handle_view(handle, 0, &view, nullptr) != BPS_CLOSED;
    wrong += bps_handle_release(handle, nullptr) != BPS_CLOSED;
    bps_handle_free(handle);
    ::_exit(wrong);
  }
  REQUIRE(child > 0);
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(read_view(handle) == in);
  CHECK(bps_handle_release(handle, nullptr) == BPS_OK);
  bps_handle_free(handle);
  CHECK(bps_deallocate(client, memory) == BPS_OK);
}

TEST_CASE("c api: allocated memory and views over each transport") {
  for (const char* transport : {"tcp", "shm"}) {
    bps_options options = small_partitions("true");
    set(options, "transport", transport);
    const OpenClient client(options);
    const bps_tensor tensor = client.declare("t", 10'000);
    void* memory = nullptr;
    REQUIRE(bps_allocate(client, 40'000, &memory, nullptr) == BPS_OK);
    auto* const in = static_cast<float*>(memory);
    const bps_buffer from{sizeof(bps_buffer), in, 40'000, BPS_MEMORY_HOST, 0, nullptr};
    for (int round = 0; round < 20; ++round) {
      std::fill_n(in, 10'000, static_cast<float>(round));
      bps_handle* handle = nullptr;
      REQUIRE(bps_push_pull(client, tensor, &from, nullptr, BPS_SUM, &handle, nullptr) == BPS_OK);
      CHECK(bps_wait(handle, kSoon, nullptr) == BPS_OK);
      CHECK(read_view(handle) == std::vector<float>(10'000, static_cast<float>(round)));
      CHECK(bps_handle_release(handle, nullptr) == BPS_OK);
      bps_handle_free(handle);
      // In place, with the loan of the view before it kept until now.
      REQUIRE(bps_push_pull(client, tensor, &from, &from, BPS_SUM, &handle, nullptr) == BPS_OK);
      CHECK(bps_wait(handle, kSoon, nullptr) == BPS_OK);
      CHECK(std::all_of(in, in + 10'000, [&](float each) { return each == static_cast<float>(round); }));
      bps_handle_free(handle);
    }
    bps_stats stats{};
    stats.struct_size = sizeof stats;
    CHECK(bps_get_stats(client, &stats) == BPS_OK);
    CHECK(stats.lanes >= 1);
    CHECK(stats.shm_lanes == (std::string(transport) == "shm" ? stats.lanes : 0));
    CHECK(bps_deallocate(client, memory) == BPS_OK);
  }
}

// Tensors that ranks drop, and names that are declared again.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "client/src/api/testing/c_api_harness.h"

namespace bps::c_api_drop_test {
namespace {

using namespace bps::testing;
using Catch::Contains;

bps_handle* drop(bps_client* client, bps_tensor tensor) {
  Refusal why;
  bps_handle* handle = nullptr;
  const bps_status status = bps_drop(client, tensor, &handle, why);
  INFO(why.message());
  REQUIRE(status == BPS_OK);
  REQUIRE(handle != nullptr);
  return handle;
}

bool is_done(bps_handle* handle) {
  int done = 0;
  CHECK(bps_poll(handle, &done) == BPS_OK);
  return done != 0;
}

void ends_well(bps_handle* handle) {
  Refusal why;
  const bps_status status = bps_wait(handle, kSoon, why);
  INFO(why.message());
  CHECK(status == BPS_OK);
  bps_handle_free(handle);
}

// Both ranks push, and get the sum.
void check_sum(const TwoWorkers& job, bps_tensor a, bps_tensor b, std::size_t count) {
  std::vector<float> one(count, 1.0f), two(count, 2.0f);
  bps_handle* const first = job.a.push_pull(a, one, one);
  bps_handle* const second = job.b.push_pull(b, two, two);
  ends_well(first);
  ends_well(second);
  CHECK(one == std::vector<float>(count, 3.0f));
  CHECK(two == one);
}

TEST_CASE("c api drop: what is dropped takes no calls, and its name is another tensor") {
  OpenClient client;
  const bps_tensor tensor = client.declare("t", 10);
  std::vector<float> data(10, 1.0f);
  ends_well(client.push_pull(tensor, data, data));
  bps_handle* const dropped = drop(client, tensor);

  const bps_buffer buffer = OpenClient::buffer(data);
  bps_handle* handle = dropped;
  Refusal why;
  CHECK(bps_push_pull(client, tensor, &buffer, &buffer, BPS_SUM, &handle, why) == BPS_INVALID_ARGUMENT);
  CHECK(handle == nullptr);
  CHECK_THAT(why.message(), Contains("tensor ") && Contains("has been dropped"));
  CHECK_THAT(why.error.advice, Contains("declare it again"));
  CHECK(bps_broadcast(client, tensor, &buffer, 0, &handle, why) == BPS_INVALID_ARGUMENT);
  CHECK_THAT(why.message(), Contains("has been dropped"));
  handle = dropped;
  CHECK(bps_drop(client, tensor, &handle, why) == BPS_INVALID_ARGUMENT);
  CHECK(handle == nullptr);
  CHECK_THAT(why.message(), Contains("has been dropped"));

  const bps_tensor other = client.declare("t", 30'000, BPS_F64);
  CHECK(other != tensor);
  CHECK(client.declare("t", 30'000, BPS_F64) == other);
  CHECK(bps_wait(dropped, kSoon, why) == BPS_OK);
  CHECK(bps_wait(dropped, 0, why) == BPS_OK);
  CHECK(is_done(dropped));
  CHECK(bps_handle_ranks(dropped) == 0);
  bps_view view = BPS_VIEW_INIT;
  CHECK(bps_handle_view(dropped, 0, &view, why) == BPS_INVALID_ARGUMENT);
  CHECK(bps_handle_release(dropped, why) == BPS_INVALID_ARGUMENT);
  CHECK(bps_handle_wait_stream(dropped, nullptr, why) == BPS_INVALID_ARGUMENT);
  bps_handle_free(dropped);
  CHECK(bps_push_pull(client, tensor, &buffer, &buffer, BPS_SUM, &handle, why) == BPS_INVALID_ARGUMENT);
  CHECK_THAT(why.message(), Contains("has been dropped"));

  std::vector<double> in(30'000, 2.0), out(in.size());
  const bps_buffer from{sizeof(bps_buffer), in.data(), in.size() * 8, BPS_MEMORY_HOST, 0, nullptr};
  const bps_buffer to{sizeof(bps_buffer), out.data(), out.size() * 8, BPS_MEMORY_HOST, 0, nullptr};
  REQUIRE(bps_push_pull(client, other, &from, &to, BPS_SUM, &handle, why) == BPS_OK);
  ends_well(handle);
  CHECK(in == out);
  CHECK(bps_close(client, kSoon, why) == BPS_OK);
}

TEST_CASE("c api drop: refused while an operation is under way or its view is read, and when unknown") {
  const TwoWorkers job;
  const OpenClient& client = job.a;
  std::vector<float> data(10, 1.0f), others(10, 2.0f);
  bps_handle* const pending = job.pending("delta", data);
  const bps_tensor tensor = client.declare("delta", 10);
  Refusal why;
  bps_handle* handle = pending;
  const auto refused = [&](bps_tensor which) {
    CHECK(bps_drop(client, which, &handle, why) == BPS_INVALID_ARGUMENT);
    CHECK(handle == nullptr);
    CHECK(bps_drop(client, which, nullptr, why) == BPS_INVALID_ARGUMENT);
    return why.message();
  };
  CHECK_THAT(refused(tensor), Contains("'delta' is under way"));
  CHECK_THAT(refused(tensor + 1), Contains("has not been declared"));
  CHECK(bps_drop(nullptr, tensor, &handle, why) == BPS_INVALID_ARGUMENT);
  ends_well(job.b.push_pull(tensor, others, others));
  ends_well(pending);

  const bps_buffer in = OpenClient::buffer(data);
  bps_handle* viewed = nullptr;
  REQUIRE(bps_push_pull(client, tensor, &in, nullptr, BPS_SUM, &viewed, why) == BPS_OK);
  ends_well(job.b.push_pull(tensor, others, others));
  REQUIRE(bps_wait(viewed, kSoon, why) == BPS_OK);
  CHECK_THAT(refused(tensor), Contains("still being read in place"));
  CHECK_THAT(why.error.advice, Contains("release it"));
  REQUIRE(bps_handle_release(viewed, why) == BPS_OK);
  bps_handle_free(viewed);
  // What was refused has changed nothing.
  check_sum(job, tensor, tensor, 10);
  bps_handle* const first = drop(client, tensor);
  CHECK(bps_drop(job.b, tensor, nullptr, why) == BPS_OK);
  ends_well(first);
}

TEST_CASE("c api drop: done when both ranks have dropped it; the nth of a name is the same for both") {
  const TwoWorkers job;
  constexpr std::size_t kCount = 100'000;  // several partitions
  const bps_tensor first = job.a.declare("t", kCount);
  CHECK(job.b.declare("t", kCount) == first);
  check_sum(job, first, first, kCount);
  bps_handle* const of_a = drop(job.a, first);
  const bps_tensor second = job.a.declare("t", 10);
  CHECK(second != first);
  bps_handle* const again = drop(job.a, second);
  const bps_tensor third = job.a.declare("t", 20);
  // The other one still has the first.
  CHECK(job.b.declare("t", kCount) == first);
  CHECK_FALSE(is_done(of_a));
  CHECK_FALSE(is_done(again));
  bps_handle* const of_b = drop(job.b, first);
  ends_well(of_a);
  ends_well(of_b);
  CHECK(job.b.declare("t", 10) == second);
  CHECK_FALSE(is_done(again));
  ends_well(drop(job.b, second));
  ends_well(again);
  CHECK(job.b.declare("t", 20) == third);
  check_sum(job, third, third, 20);
}

TEST_CASE("c api drop: ranks that have called different things drop the tensor, and go on") {
  const ExpectLog differ("round 1 of t (partition ");
  const TwoWorkers job;
  constexpr std::size_t kCount = 100'000;  // several partitions
  const bps_tensor first = job.a.declare("t", kCount);
  REQUIRE(job.b.declare("t", kCount) == first);
  check_sum(job, first, first, kCount);
  std::vector<float> one(kCount, 1.0f), two(kCount, 2.0f);
  bps_handle* const sum = job.a.push_pull(first, one, one);
  const bps_buffer buffer = OpenClient::buffer(two);
  bps_handle* max = nullptr;
  REQUIRE(bps_push_pull(job.b, first, &buffer, &buffer, BPS_MAX, &max, nullptr) == BPS_OK);
  for (bps_handle* const handle : {sum, max}) {
    Refusal why;
    CHECK(bps_wait(handle, kSoon, why) == BPS_CONFIGURATION);
    CHECK_THAT(why.message(), Contains("rank 0 calls sum") && Contains("rank 1 calls max"));
    bps_handle_free(handle);
  }
  bps_handle* const of_a = drop(job.a, first);
  const bps_tensor second = job.a.declare("t", kCount);
  CHECK(second != first);
  ends_well(drop(job.b, first));
  ends_well(of_a);
  CHECK(job.b.declare("t", kCount) == second);
  check_sum(job, second, second, kCount);
}

TEST_CASE("c api drop: what others call that needs this rank names it, and they drop it, too") {
  const ExpectLog dropped("can never complete: rank 1 has dropped the tensor");
  const TwoWorkers job;
  const bps_tensor tensor = job.a.declare("t", 10);
  REQUIRE(job.b.declare("t", 10) == tensor);
  bps_handle* const of_b = drop(job.b, tensor);
  std::vector<float> data(10, 1.0f);
  bps_handle* const handle = job.a.push_pull(tensor, data, data);
  Refusal why;
  CHECK(bps_wait(handle, kSoon, why) == BPS_CONFIGURATION);
  CHECK_THAT(why.message(), Contains("rank 1 has dropped the tensor"));
  bps_handle_free(handle);
  CHECK_FALSE(is_done(of_b));
  ends_well(drop(job.a, tensor));
  ends_well(of_b);
  const bps_tensor next = job.a.declare("t", 10);
  check_sum(job, next, job.b.declare("t", 10), 10);
}

TEST_CASE("c api drop: a handle is polled, called back and freed as any other") {
  const TwoWorkers job;
  const bps_tensor tensor = job.a.declare("t", 10);
  REQUIRE(job.b.declare("t", 10) == tensor);
  bps_handle* const handle = drop(job.a, tensor);
  int fd = -1;
  REQUIRE(bps_handle_fd(handle, &fd, nullptr) == BPS_OK);
  pollfd entry{fd, POLLIN, 0};
  CHECK(::poll(&entry, 1, 0) == 0);
  CHECK_FALSE(is_done(handle));
  Refusal why;
  explained([&](bps_error* error) { return bps_wait(handle, 0, error); },
            "waited 0 s for the drop of t, which not all of the 2 workers have dropped");

  // The other rank drops it within a callback, which may not wait.
  struct Drop {
    bps_client* client;
    bps_tensor tensor;
    bps_handle* handle = nullptr;
    bps_status dropped = BPS_INTERNAL, waited = BPS_OK;
    std::promise<void> ran;
  } second{job.b, tensor, nullptr, BPS_INTERNAL, BPS_OK, {}};
  const auto run = [](const bps_error*, void* user) {
    auto& me = *static_cast<Drop*>(user);
    me.dropped = bps_drop(me.client, me.tensor, &me.handle, nullptr);
    me.waited = bps_wait(me.handle, 0, nullptr);
    me.ran.set_value();
  };
  std::vector<float> empty;
  bps_handle* const done = job.b.push_pull(job.b.declare("empty", 0), empty, empty);
  REQUIRE(bps_then(done, run, &second, nullptr) == BPS_OK);
  second.ran.get_future().wait();
  CHECK(second.dropped == BPS_OK);
  CHECK(second.waited == BPS_INVALID_ARGUMENT);
  bps_handle_free(done);
  CHECK(bps_wait(handle, kSoon, why) == BPS_OK);
  CHECK(::poll(&entry, 1, 0) == 1);
  std::promise<bool> called;
  const auto note = [](const bps_error* error, void* user) {
    static_cast<std::promise<bool>*>(user)->set_value(error == nullptr);
  };
  REQUIRE(bps_then(handle, note, &called, nullptr) == BPS_OK);
  CHECK(called.get_future().get());
  bps_handle_free(handle);
  ends_well(second.handle);
  // Freed before it is done: the drop goes on.
  const bps_tensor next = job.a.declare("t", 10);
  REQUIRE(job.b.declare("t", 10) == next);
  bps_handle_free(drop(job.a, next));
  ends_well(drop(job.b, next));
}

TEST_CASE("c api drop: tensors without elements, and asynchronous ones, which others go on with") {
  const TwoWorkers job;
  const bps_tensor empty = job.a.declare("empty", 0);
  REQUIRE(job.b.declare("empty", 0) == empty);
  bps_handle* of_a = drop(job.a, empty);
  CHECK_FALSE(is_done(of_a));
  ends_well(drop(job.b, empty));
  ends_well(of_a);
  CHECK(job.a.declare("empty", 10) == job.b.declare("empty", 10));

  const bps_tensor value = job.a.declare("value", 10, BPS_F32, BPS_MODE_ASYNC);
  REQUIRE(job.b.declare("value", 10, BPS_F32, BPS_MODE_ASYNC) == value);
  std::vector<float> zeros(10), ones(10, 1.0f);
  const bps_buffer start = OpenClient::buffer(zeros);
  bps_handle* root = nullptr;
  REQUIRE(bps_broadcast(job.a, value, &start, 0, &root, nullptr) == BPS_OK);
  ends_well(root);
  of_a = drop(job.a, value);
  for (int round = 1; round <= 3; ++round) {
    std::vector<float> sum(10);
    ends_well(job.b.push_pull(value, ones, sum));
    CHECK(sum == std::vector<float>(10, static_cast<float>(round)));
  }
  CHECK_FALSE(is_done(of_a));
  ends_well(drop(job.b, value));
  ends_well(of_a);
}

TEST_CASE("c api drop: a close does not wait for drops, and drops for the others") {
  const TwoWorkers job;
  const bps_tensor tensor = job.a.declare("t", 10), kept = job.a.declare("kept", 10);
  REQUIRE(job.b.declare("t", 10) == tensor);
  bps_handle* const of_a = drop(job.a, tensor);
  Refusal why;
  CHECK(bps_close(job.a, kSoon, why) == BPS_OK);
  CHECK(bps_wait(of_a, 0, why) == BPS_CANCELLED);
  bps_handle_free(of_a);
  bps_handle* handle = nullptr;
  CHECK(bps_drop(job.a, kept, &handle, why) == BPS_CLOSED);
  CHECK(handle == nullptr);
  // Who has left has dropped all.
  ends_well(drop(job.b, tensor));
}

TEST_CASE("c api drop: a forked child must not drop its parent's tensors") {
  OpenClient client;
  const bps_tensor tensor = client.declare("t", 10);
  const pid_t child = ::fork();
  if (child == 0) {
    bps_error error = BPS_ERROR_INIT;
    bps_handle* handle = nullptr;
    int wrong = bps_drop(client, tensor, &handle, &error) != BPS_CLOSED;
    wrong += std::strstr(error.message, "fork") == nullptr;
    ::_exit(wrong);
  }
  REQUIRE(child > 0);
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  ends_well(drop(client, tensor));
}

// Mostly for the thread and address sanitizers.
TEST_CASE("c api drop: a drop while other threads begin operations on the tensor") {
  constexpr int kRounds = 200;
  OpenClient client;
  for (int i = 0; i < kRounds; ++i) {
    const bps_tensor tensor = client.declare("raced", 16);
    std::atomic<bool> has_begun{false};
    auto pushing = std::async(std::launch::async, [&] {
      std::vector<float> memory(16, 1.0f);
      const bps_buffer buffer = OpenClient::buffer(memory);
      bps_handle* handle = nullptr;
      while (bps_push_pull(client, tensor, &buffer, &buffer, BPS_SUM, &handle, nullptr) == BPS_OK) {
        if (bps_wait(handle, kSoon, nullptr) != BPS_OK) return false;
        bps_handle_free(handle);
        has_begun = true;
      }
      return handle == nullptr;
    });
    while (!has_begun && pushing.wait_for(std::chrono::milliseconds(0)) == std::future_status::timeout) {}
    bps_handle* handle = nullptr;
    bps_status status = BPS_OK;
    do {
      status = bps_drop(client, tensor, &handle, nullptr);
    } while (status == BPS_INVALID_ARGUMENT);
    REQUIRE(status == BPS_OK);
    CHECK(pushing.get());
    ends_well(handle);
  }
}

}  // namespace
}  // namespace bps::c_api_drop_test

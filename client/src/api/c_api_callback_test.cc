// Callbacks and the freeing of what they are about, as a language with a garbage collector does it: whoever
// drops the last reference frees a handle, on the callback thread, too. Mostly for the thread and address
// sanitizers.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "client/src/api/testing/c_api_harness.h"

using namespace bps::testing;

namespace {

constexpr std::size_t kElements = 1000;

// One operation with memory of its own, which goes when its callback has run.
struct Step {
  std::vector<float> memory = std::vector<float>(kElements, 1.0f);
  bps_handle* handle = nullptr;
  bool frees_handle = false;  // in the callback
  std::atomic<int>* good = nullptr;
  std::atomic<int>* cancelled = nullptr;
  std::promise<void> ran;

  static void end(const bps_error* error, void* user) {
    const std::unique_ptr<Step> step(static_cast<Step*>(user));
    if (step->frees_handle) bps_handle_free(step->handle);
    if (error == nullptr) *step->good += step->memory == std::vector<float>(kElements, 1.0f) ? 1 : 0;
    if (error != nullptr && error->status == BPS_CANCELLED) ++*step->cancelled;
    step->ran.set_value();
  }
};

enum class Way { freed_at_once, freed_in_callback, freed_after_wait, kWays };

// False if something failed. No assertions: not on the test's thread.
bool run_step(bps_client* client, bps_tensor tensor, Way way, std::atomic<int>& good) {
  auto step = std::make_unique<Step>();
  step->frees_handle = way == Way::freed_in_callback;
  step->good = &good;
  const bps_buffer buffer = OpenClient::buffer(step->memory);
  bps_handle* handle = nullptr;
  if (bps_push_pull(client, tensor, &buffer, &buffer, BPS_SUM, &handle, nullptr) != BPS_OK) return false;
  step->handle = handle;
  std::future<void> ran = step->ran.get_future();
  if (bps_then(handle, &Step::end, step.get(), nullptr) != BPS_OK) return false;
  (void)step.release();  // it is the callback's
  bool done_well = true;
  if (way == Way::freed_after_wait) done_well = bps_wait(handle, kSoon, nullptr) == BPS_OK;
  if (way != Way::freed_in_callback) bps_handle_free(handle);
  // The tensor may have its next operation.
  return ran.wait_for(std::chrono::milliseconds(kSoon)) == std::future_status::ready && done_well;
}

}  // namespace

TEST_CASE("c api: handles and memory are freed by several threads and by callbacks") {
  constexpr int kThreads = 4, kSteps = 90;
  const OpenClient client;
  std::vector<bps_tensor> tensors;
  for (int i = 0; i < kThreads; ++i)
    tensors.push_back(client.declare(std::to_string(i).c_str(), kElements));
  std::atomic<int> good{0}, failed{0};
  std::vector<std::future<void>> threads;
  for (const bps_tensor tensor : tensors) {
    threads.push_back(std::async(std::launch::async, [&, tensor] {
      for (int i = 0; i < kSteps; ++i) {
        const Way way = static_cast<Way>(i % static_cast<int>(Way::kWays));
        if (!run_step(client, tensor, way, good)) ++failed;
      }
    }));
  }
  for (std::future<void>& thread : threads)
    thread.get();
  CHECK(failed == 0);
  CHECK(good == kThreads * kSteps);
}

TEST_CASE("c api: callbacks of what close ends run before it returns, while handles are freed") {
  const bps::ExpectLog lost("is gone: connection lost");  // who gives up is, and the other one waits for it
  constexpr int kSteps = 32;
  const TwoWorkers job;
  std::atomic<int> good{0}, cancelled{0};
  std::vector<bps_handle*> kept;
  for (int i = 0; i < kSteps; ++i) {
    auto step = std::make_unique<Step>();
    step->frees_handle = i % 2 == 0;
    step->good = &good;
    step->cancelled = &cancelled;
    step->handle = job.pending(std::to_string(i).c_str(), step->memory);
    if (!step->frees_handle) kept.push_back(step->handle);
    REQUIRE(bps_then(step->handle, &Step::end, step.get(), nullptr) == BPS_OK);
    (void)step.release();  // it is the callback's
  }
  auto freeing = std::async(std::launch::async, [&] {
    for (bps_handle* handle : kept)
      bps_handle_free(handle);
  });
  CHECK(bps_close(job.a, 0, nullptr) == BPS_OK);
  CHECK(cancelled == kSteps);
  CHECK(good == 0);
  freeing.get();
}

TEST_CASE("c api: what a callback captures of a function that waits is there when it runs") {
  constexpr int kSteps = 2000;
  const OpenClient client;
  const bps_tensor tensor = client.declare("captured", kElements);
  std::vector<float> memory(kElements, 1.0f);
  int good = 0;
  for (int i = 0; i < kSteps; ++i) {
    bps_handle* const handle = client.push_pull(tensor, memory, memory);
    std::atomic<bool> has_run{false};
    const auto run = [](const bps_error*, void* user) { *static_cast<std::atomic<bool>*>(user) = true; };
    REQUIRE(bps_then(handle, run, &has_run, nullptr) == BPS_OK);
    REQUIRE(bps_wait(handle, kSoon, nullptr) == BPS_OK);
    good += has_run ? 1 : 0;
    int done = 0;
    REQUIRE(bps_poll(handle, &done) == BPS_OK);
    REQUIRE(done == 1);
    bps_handle_free(handle);
  }
  CHECK(good == kSteps);
}

TEST_CASE(
    "c api: a wait that expires for a callback says so, and inside the callback the operation has ended") {
  const OpenClient client;
  std::vector<float> memory(kElements, 1.0f);
  bps_handle* const handle = client.push_pull(client.declare("held", kElements), memory, memory);
  struct Held {
    bps_handle* handle;
    std::promise<int> entered;
    std::promise<void> released;
    bps_status waited = BPS_OK;
  } held{handle, {}, {}};
  const auto hold = [](const bps_error*, void* user) {
    Held& me = *static_cast<Held*>(user);
    int done = 0;
    bps_poll(me.handle, &done);
    me.waited = bps_wait(me.handle, kSoon, nullptr);
    me.entered.set_value(done);
    me.released.get_future().wait();
  };
  REQUIRE(bps_then(handle, hold, &held, nullptr) == BPS_OK);
  CHECK(held.entered.get_future().get() == 1);
  CHECK(held.waited == BPS_INVALID_ARGUMENT);
  Refusal why;
  CHECK(bps_wait(handle, 0, why) == BPS_DEADLINE);
  CHECK_THAT(why.message(), Catch::Contains("a callback of an operation that has ended"));
  held.released.set_value();
  CHECK(bps_wait(handle, kSoon, nullptr) == BPS_OK);
  bps_handle_free(handle);
}

// Small operations one after another, each waited for: the thread that waits runs the client's loop itself.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <climits>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/src/api/testing/c_api_harness.h"
#include "client/src/runtime/lone_series.h"
#include "proto/base/usable_cores.h"

using Catch::Contains;
using namespace std::chrono_literals;

namespace bps::testing {
namespace {

constexpr std::size_t kElements = 1000;

struct Tensor {
  const OpenClient& client;
  bps_tensor id;
  std::vector<float> memory;
  bps_handle* handle = nullptr;

  Tensor(const OpenClient& its_client, const std::string& name, std::size_t elements)
      : client(its_client), id(client.declare(name.c_str(), elements)), memory(elements) {}
  void start(float value) {
    memory.assign(memory.size(), value);
    handle = client.push_pull(id, memory, memory);
  }
  bool is_right(float value) { return memory == std::vector<float>(memory.size(), value); }
};

// The same tensor on both ranks.
struct Pair {
  Tensor a, b;
  Pair(const TwoWorkers& job, const std::string& name, std::size_t elements)
      : a(job.a, name, elements), b(job.b, name, elements) {}
  void start(int round) {
    a.start(static_cast<float>(round));
    b.start(1.0f);
  }
  void end(int round) {
    check_ok(a.handle);
    check_ok(b.handle);
    INFO("round " << round);
    REQUIRE((a.is_right(static_cast<float>(round) + 1) && b.is_right(static_cast<float>(round) + 1)));
  }
  void begin_series() {
    for (int round = 0; round <= LoneSeries::kEnough + 2; ++round) {
      start(round);
      end(round);
    }
  }
};

void pause(Duration how_long) {
  (void)Completion<int>().wait_until(std::chrono::steady_clock::now() + how_long);
}

// How often the threads of clients' loops have slept.
long loop_sleeps() {
  long all = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name, word;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name != "bps-client") continue;
    std::ifstream status(task.path() / "status");
    while (status >> word) {
      long count = 0;
      if (word == "voluntary_ctxt_switches:" && status >> count) all += count;
    }
  }
  return all;
}

TEST_CASE("c api: in a series the threads of the loops sleep") {
  if (usable_cores() < 2) return;  // then clients share one, and run it themselves
  const TwoWorkers job;
  Pair pair(job, "delta", kElements);
  constexpr int kRounds = 300;
  long fewest = LONG_MAX;
  const TimePoint deadline = std::chrono::steady_clock::now() + 60s;
  while (fewest > kRounds &&
         std::chrono::steady_clock::now() < deadline) {  // a busy machine interrupts series
    const long before = loop_sleeps();
    for (int round = 0; round < kRounds; ++round) {
      pair.start(round);
      pair.end(round);
    }
    fewest = std::min(fewest, loop_sleeps() - before);
  }
  CHECK(fewest <= kRounds);  // without that each sleeps in each round
}

TEST_CASE("c api: a series of small operations, and what interrupts it") {
  const TwoWorkers job;
  Pair small(job, "small", kElements), other(job, "other", 10), large(job, "large", 300'000);
  for (int round = 0; round < 1500; ++round) {
    small.start(round);
    if (round % 20 == 7) {  // under way together
      other.start(round);
      large.start(round);
      large.end(round);
      other.end(round);
    }
    if (round % 50 == 3) pause(2 * LoneSeries::kLongestGap);
    if (round % 30 == 11) {  // it is not waited for
      int is_done = 0;
      const TimePoint deadline = std::chrono::steady_clock::now() + 20s;
      while (is_done == 0 && std::chrono::steady_clock::now() < deadline) {
        if (bps_poll(small.b.handle, &is_done) != BPS_OK) break;
      }
      REQUIRE(is_done == 1);
    }
    if (round % 40 == 21) job.a.declare(("new " + std::to_string(round)).c_str(), 10);
    small.end(round);
    if (round % 50 == 23) pause(2 * LoneSeries::kLongestGap);
  }
}

TEST_CASE("c api: two threads of a program, each with a series of its own") {
  const TwoWorkers job;
  Pair one(job, "one", kElements), two(job, "two", kElements);
  std::atomic<int> good{0};
  const auto run = [&good](Tensor& tensor) {  // no assertions: not on the test's thread
    for (int round = 0; round < 500; ++round) {
      tensor.memory.assign(kElements, 2.0f);
      const bps_buffer buffer = OpenClient::buffer(tensor.memory);
      bps_handle* handle = nullptr;
      if (bps_push_pull(tensor.client, tensor.id, &buffer, &buffer, BPS_SUM, &handle, nullptr) != BPS_OK)
        return;
      const bps_status status = bps_wait(handle, kSoon, nullptr);
      bps_handle_free(handle);
      if (status == BPS_OK && tensor.is_right(4.0f)) ++good;
    }
  };
  std::vector<std::thread> threads;
  for (Tensor* const tensor : {&one.a, &one.b, &two.a, &two.b})
    threads.emplace_back([&run, tensor] { run(*tensor); });
  for (std::thread& thread : threads)
    thread.join();
  CHECK(good == 4 * 500);
}

TEST_CASE("c api: a callback in a series runs on its own thread, before the wait returns") {
  const TwoWorkers job;
  Pair pair(job, "delta", kElements);
  pair.begin_series();
  pair.start(7);
  struct Seen {
    std::thread::id thread;
    std::atomic<bool> has_run{false};
  } seen;
  REQUIRE(bps_then(
              pair.a.handle,
              [](const bps_error*, void* user) {
                auto& it = *static_cast<Seen*>(user);
                it.thread = std::this_thread::get_id();
                it.has_run = true;
              },
              &seen, nullptr) == BPS_OK);
  CHECK(bps_wait(pair.a.handle, kSoon, nullptr) == BPS_OK);
  CHECK(seen.has_run);
  CHECK(seen.thread != std::this_thread::get_id());
  pair.end(7);
}

TEST_CASE("c api: a wait in a series expires as any other, and the operation goes on") {
  const ExpectLog lost("is gone: connection lost");
  const TwoWorkers job;
  Pair pair(job, "delta", kElements);
  pair.begin_series();
  pair.a.start(5.0f);
  Refusal why;
  CHECK(bps_wait(pair.a.handle, 300, why) == BPS_DEADLINE);
  CHECK_THAT(why.message(), Contains("waited 0.3 s for round ") && Contains("missing rank 1"));
  pair.b.start(1.0f);
  pair.end(5);
}

TEST_CASE("c api: a client that is closed ends the wait of a series") {
  const ExpectLog lost("is gone: connection lost");
  const ExpectLog left("can never complete: rank 0 has left the job");
  const TwoWorkers job;
  Pair pair(job, "delta", kElements);
  pair.begin_series();
  pair.a.start(5.0f);
  const auto ended = std::make_shared<Completion<bps_status>>();
  std::thread waiter([handle = pair.a.handle, ended] { ended->set(bps_wait(handle, kSoon, nullptr)); });
  pause(20ms);
  CHECK(bps_close(job.a, 100, nullptr) == BPS_OK);
  REQUIRE(ended->wait_until(std::chrono::steady_clock::now() + 20s));
  CHECK(ended->value() != BPS_OK);
  waiter.join();
  bps_handle_free(pair.a.handle);
}

}  // namespace
}  // namespace bps::testing

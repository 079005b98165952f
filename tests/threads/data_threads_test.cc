// Clients whose lanes live on several threads, with a cluster on other threads of this process.
#include <stdlib.h>

#include <algorithm>
#include <bps/client.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/threads/cluster.h"

namespace {

using namespace std::chrono_literals;

constexpr int kWorkers = 3;
constexpr auto kPatience = 120s;

// For as long as it lives, what clients are opened with.
struct DataThreads {
  explicit DataThreads(int count) { ::setenv("BPS_DATA_THREADS", std::to_string(count).c_str(), 1); }
  ~DataThreads() { ::unsetenv("BPS_DATA_THREADS"); }
};

bps::Options options_of(const bps::testing::Cluster& cluster, int rank) {
  return bps::Options{}
      .scheduler(cluster.scheduler())
      .job("threads")
      .rank(rank)
      .world_size(kWorkers)
      .set("transport", "tcp")
      .set("partition-bytes", 16 * 1024)
      .log([](auto...) {});
}

// Large and small, so that some lie on all lanes and some on one.
const std::vector<std::size_t> kSizes = {1, 100, 5'000, 40'000, 100'000, 3, 60'000, 20'000};

// What `rank` pushes to a tensor in a round.
float value_of(int rank, std::size_t tensor, int round, std::size_t element) {
  return static_cast<float>((element % 97) * static_cast<std::size_t>(rank + 1) + tensor +
                            static_cast<std::size_t>(round));
}
float sum_of(std::size_t tensor, int round, std::size_t element) {
  float sum = 0;
  for (int rank = 0; rank < kWorkers; ++rank)
    sum += value_of(rank, tensor, round, element);
  return sum;
}

// Empty, or what was wrong first.
std::string train(const bps::testing::Cluster& cluster, int rank, int rounds,
                  const std::function<void(int)>& reached) {
  try {
    bps::Client client{options_of(cluster, rank)};
    std::vector<bps::Tensor> tensors;
    std::vector<std::vector<float>> in, out;
    for (std::size_t t = 0; t < kSizes.size(); ++t) {
      tensors.push_back(client.declare("t" + std::to_string(t), bps::DType::f32, kSizes[t]));
      in.emplace_back(kSizes[t]);
      out.emplace_back(kSizes[t]);
    }
    for (int round = 0; round < rounds; ++round) {
      reached(round);
      std::vector<bps::Handle> handles;
      for (std::size_t t = 0; t < kSizes.size(); ++t) {
        for (std::size_t i = 0; i < kSizes[t]; ++i)
          in[t][i] = value_of(rank, t, round, i);
        handles.push_back(client.push_pull(tensors[t], in[t], out[t], bps::Op::sum));
      }
      for (std::size_t t = 0; t < kSizes.size(); ++t) {
        handles[t].wait(kPatience);
        for (std::size_t i = 0; i < kSizes[t]; ++i) {
          if (out[t][i] != sum_of(t, round, i))
            return "round " + std::to_string(round) + ", tensor " + std::to_string(t) + ", element " +
                   std::to_string(i);
        }
      }
    }
    client.close(kPatience);
    return {};
  } catch (const bps::Error& error) {
    return error.what();
  }
}

std::vector<std::string> train_all(
    const bps::testing::Cluster& cluster, int rounds, const std::function<void(int)>& reached = [](int) {}) {
  std::vector<std::future<std::string>> ranks;
  for (int rank = 0; rank < kWorkers; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&cluster, rank, rounds, &reached] {
      return train(
          cluster, rank, rounds, rank == 0 ? reached : [](int) {});
    }));
  }
  std::vector<std::string> wrong;
  for (auto& rank : ranks)
    wrong.push_back(rank.get());
  return wrong;
}

const std::vector<std::string> kNothing(kWorkers);

// Of the clients of this process that has most of them, as they are called: bps-client, bps-client-1,
// bps-client-2, ...
int most_data_threads() {
  const std::string first = "bps-client";
  int most = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == first) most = std::max(most, 1);
    if (name.starts_with(first + "-")) most = std::max(most, std::stoi(name.substr(first.size() + 1)) + 1);
  }
  return most;
}

// With all workers in the job.
int data_threads_of(const bps::testing::Cluster& cluster, int rounds) {
  int threads = 0;
  CHECK(train_all(cluster, rounds, [&](int round) {
          if (round == 1) threads = most_data_threads();
        }) == kNothing);
  return threads;
}

}  // namespace

TEST_CASE("data threads: sums are right, with as many threads as lanes and with fewer") {
  for (const int threads : {2, 4}) {
    const DataThreads setting(threads);
    const bps::testing::Cluster cluster(4);
    CHECK(data_threads_of(cluster, 30) == threads);
  }
}

TEST_CASE(
    "data threads: by default there are as many as CPUs, or as lanes, but one where those spread unevenly") {
  const bps::testing::Cluster cluster(4);
  const int cpus = static_cast<int>(std::thread::hardware_concurrency());
  CHECK(data_threads_of(cluster, 30) == (cpus == 3 ? 1 : std::min(cpus, 4)));
}

TEST_CASE("data threads: one, if that is wanted") {
  const DataThreads setting(1);
  const bps::testing::Cluster cluster(4);
  CHECK(data_threads_of(cluster, 10) == 1);
}

TEST_CASE("data threads: partitions go from the lane of one thread to that of another when a server stops") {
  const DataThreads setting(3);
  bps::testing::Cluster cluster(4);
  std::promise<void> stop;
  auto stopping = std::async(std::launch::async, [&] {
    stop.get_future().wait();
    cluster.stop(1);
    cluster.stop(2);
  });
  CHECK(train_all(cluster, 60, [&](int round) {
          if (round == 10) stop.set_value();
        }) == kNothing);
  stopping.get();
}

TEST_CASE("data threads: a client that is closed in the middle of a round leaves its memory alone") {
  const DataThreads setting(2);
  const bps::testing::Cluster cluster(3);
  std::vector<std::future<bps::Code>> ranks;
  for (int rank = 0; rank < kWorkers; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&cluster, rank] {
      bps::Client client{options_of(cluster, rank)};
      const std::size_t count = 400'000;
      const bps::Tensor tensor = client.declare("t", bps::DType::f32, count);
      auto in = std::make_unique<std::vector<float>>(count, 1.0f),
           out = std::make_unique<std::vector<float>>(count);
      for (int round = 0; round < 3; ++round)
        client.push_pull(tensor, *in, *out, bps::Op::sum).wait(kPatience);
      bps::Handle handle = client.push_pull(tensor, *in, *out, bps::Op::sum);
      bps::Status ended;
      client.close(std::chrono::milliseconds(rank), ended);  // may or may not be in time
      handle.wait(kPatience, ended);
      in.reset();
      out.reset();
      return ended.code();
    }));
  }
  for (auto& rank : ranks)
    CHECK(rank.get() != bps::Code::deadline);  // it has ended, one way or another
}

TEST_CASE(
    "data threads: small operations one after another, whose answers come on all threads, and views nobody "
    "reads") {
  const DataThreads setting(2);
  const bps::testing::Cluster cluster(2);
  bps::Client client{options_of(cluster, 0).world_size(1)};
  std::vector<bps::Tensor> tensors;  // some on each lane
  for (int t = 0; t < 4; ++t)
    tensors.push_back(client.declare("t" + std::to_string(t), bps::DType::f32, 1000));
  std::vector<float> in(1000, 3.0f), out(1000);
  std::vector<std::chrono::nanoseconds> times;
  for (int round = 0; round < 390; ++round) {  // the last view has ended by then
    const auto begin = std::chrono::steady_clock::now();
    out.assign(1000, 0.0f);
    client.push_pull(tensors[round % 3], in, out, bps::Op::sum).wait(kPatience);
    times.push_back(std::chrono::steady_clock::now() - begin);
    REQUIRE(out == in);
    if (round % 20 == 19) (void)client.push_pull_view(tensors[3], in, bps::Op::sum);
    if (round % 20 == 8) client.push_pull(tensors[3], in, out, bps::Op::sum).wait(kPatience);
  }
  std::sort(times.begin(), times.end());
  CHECK(times[times.size() * 9 / 10] < 500ms);  // a heartbeat would end a wait after a second
}

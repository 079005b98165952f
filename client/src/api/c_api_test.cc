// The real library through its C API, with a cluster inside the process.
#include <bps/bps.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "client/src/api/testing/c_api_harness.h"

using Catch::Contains;
using namespace bps::testing;

TEST_CASE("c api: version, dtypes, words of a status") {
  CHECK(std::string(bps_version()) == "0.1.0");
  CHECK(bps_dtype_size(BPS_F64) == 8);
  CHECK(bps_dtype_size(BPS_BF16) == 2);
  CHECK(std::string(bps_status_string(BPS_OK)) == "ok");
  CHECK(std::string(bps_status_string(BPS_DEADLINE)) == "deadline expired");
}

TEST_CASE("c api: an error struct of an older program is filled as far as it goes") {
  bps_error error = BPS_ERROR_INIT;
  error.struct_size = offsetof(bps_error, message) + 8;
  error.message[8] = 'x';
  CHECK(bps_wait(nullptr, 0, &error) == BPS_INVALID_ARGUMENT);
  CHECK(error.status == BPS_INVALID_ARGUMENT);
  CHECK(std::string(error.message, 8) == "handle i");
  CHECK(error.message[8] == 'x');
}

TEST_CASE("c api: a job of one, from declare to close") {
  OpenClient client;
  CHECK(bps_rank(client) == 0);
  CHECK(bps_world_size(client) == 1);
  CHECK(bps_local_rank(client) == 0);
  CHECK(bps_local_size(client) == 1);
  const std::size_t count = 200'001;  // several partitions, the last one odd
  const bps_tensor tensor = client.declare("weights", count);
  CHECK(client.declare("weights", count) == tensor);
  std::vector<float> in(count), out(count);
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < count; ++i)
      in[i] = static_cast<float>(i) + static_cast<float>(round);
    bps_handle* handle = client.push_pull(tensor, in, out);
    Refusal why;
    CHECK(bps_wait(handle, kSoon, why) == BPS_OK);
    CHECK(bps_wait(handle, 0, why) == BPS_OK);  // again: the same result
    CHECK(bps_handle_ranks(handle) == 1);
    int done = 0;
    CHECK(bps_poll(handle, &done) == BPS_OK);
    CHECK(done == 1);
    CHECK(in == out);
    bps_handle_free(handle);
  }
  const bps_buffer buffer = OpenClient::buffer(out);
  bps_handle* handle = nullptr;
  REQUIRE(bps_broadcast(client, tensor, &buffer, 0, &handle, nullptr) == BPS_OK);
  CHECK(bps_wait(handle, kSoon, nullptr) == BPS_OK);
  bps_handle_free(handle);
  CHECK(in == out);
  CHECK(bps_barrier(client, kSoon, nullptr) == BPS_OK);
  bps_client_info info{};
  info.struct_size = sizeof info;
  REQUIRE(bps_get_client_info(client, &info) == BPS_OK);
  CHECK(std::string(info.local_group) == "off");
  CHECK(info.cuda_device == -1);
  CHECK(info.operation_timeout_ms == 300'000);
  // Of an older program.
  info = {offsetof(bps_client_info, cuda_device), nullptr, 7, 7};
  REQUIRE(bps_get_client_info(client, &info) == BPS_OK);
  CHECK(std::string(info.local_group) == "off");
  CHECK(info.cuda_device == 7);
  CHECK(bps_get_client_info(client, nullptr) == BPS_INVALID_ARGUMENT);
  bps_stats stats{};
  stats.struct_size = sizeof stats;
  stats.rdma_reads = 1;
  REQUIRE(bps_get_stats(client, &stats) == BPS_OK);
  CHECK(stats.rounds == 4);
  CHECK(stats.pushed_bytes == 4 * count * sizeof(float));
  CHECK(stats.resent == 0);
  CHECK(stats.rdma_reads == 0);

  Refusal why;
  CHECK(bps_close(client, kSoon, why) == BPS_OK);
  CHECK(bps_close(client, kSoon, why) == BPS_OK);
  CHECK(bps_barrier(client, kSoon, why) == BPS_CLOSED);
  CHECK(bps_get_stats(client, &stats) == BPS_CLOSED);
  const bps_buffer from = OpenClient::buffer(in);
  CHECK(bps_push_pull(client, tensor, &from, &from, BPS_SUM, &handle, why) == BPS_CLOSED);
  CHECK(handle == nullptr);
  CHECK(bps_rank(client) == 0);
}

TEST_CASE("c api: bad input is refused with the exact numbers, and the client goes on") {
  OpenClient client;
  const bps_tensor tensor = client.declare("layer1.weight", 10);
  std::vector<float> data(10), large(11);
  const bps_buffer good = OpenClient::buffer(data), bad = OpenClient::buffer(large);
  bps_handle* handle = nullptr;
  Refusal why;
  const auto refused = [&](bps_tensor which, const bps_buffer* in, const bps_buffer* out,
                           int operation = BPS_SUM) {
    CHECK(bps_push_pull(client, which, in, out, static_cast<bps_reduce_op>(operation), &handle, why) ==
          BPS_INVALID_ARGUMENT);
    CHECK(handle == nullptr);
    return why.message();
  };
  CHECK_THAT(refused(tensor, &bad, &good), Contains("'in' has 44 bytes, tensor 'layer1.weight' has 40"));
  CHECK_THAT(refused(tensor, &good, &bad), Contains("'out' has 44 bytes"));
  CHECK_THAT(refused(tensor + 1, &good, &good), Contains("has not been declared"));
  CHECK_THAT(refused(tensor, nullptr, &good), Contains("'in' is NULL"));
  bps_buffer odd = good;
  odd.pointer = nullptr;
  CHECK_THAT(refused(tensor, &odd, &good), Contains("null pointer, 40 bytes are needed"));
  odd = good;
  odd.kind = BPS_MEMORY_CUDA;
  CHECK_THAT(refused(tensor, &good, &odd), Contains("CUDA"));
  odd.kind = 9;
  CHECK_THAT(refused(tensor, &good, &odd), Contains("memory kind 9"));
  CHECK_THAT(refused(tensor, &good, &good, 8), Contains("operation 8 is unknown"));
  CHECK_THAT(refused(tensor, &good, &good, BPS_XOR), Contains("f32: xor is of integers only"));
  std::vector<float> wide(11);
  bps_buffer left = OpenClient::buffer(wide), right = left;
  left.bytes = right.bytes = 40;
  right.pointer = wide.data() + 1;
  CHECK_THAT(refused(tensor, &left, &right), Contains("overlap"));
  CHECK(bps_broadcast(client, tensor, &good, 1, &handle, why) == BPS_INVALID_ARGUMENT);
  CHECK_THAT(why.message(), Contains("root 1 is no rank"));
  CHECK(bps_broadcast(client, tensor, &good, -1, &handle, why) == BPS_INVALID_ARGUMENT);
  CHECK(bps_wait(nullptr, 0, why) == BPS_INVALID_ARGUMENT);
  CHECK(bps_close(nullptr, 0, why) == BPS_INVALID_ARGUMENT);
  CHECK(bps_push_pull(nullptr, tensor, &good, &good, BPS_SUM, &handle, why) == BPS_INVALID_ARGUMENT);
  bps_free(nullptr);
  bps_handle_free(nullptr);

  bps_handle* fine = client.push_pull(tensor, data, data);
  CHECK(bps_wait(fine, kSoon, nullptr) == BPS_OK);
  bps_handle_free(fine);
}

TEST_CASE("c api: bad declarations") {
  OpenClient client;
  bps_tensor_spec spec = BPS_TENSOR_SPEC_INIT;
  bps_tensor tensor = 0;
  Refusal why;
  const auto refused = [&](bps_status status) {
    CHECK(bps_declare(client, &spec, 1, &tensor, kSoon, why) == status);
    return why.message();
  };
  CHECK_THAT(refused(BPS_INVALID_ARGUMENT), Contains("no name"));
  const std::string longest(513, 'x');
  spec.name = longest.c_str();
  CHECK_THAT(refused(BPS_INVALID_ARGUMENT), Contains("513 bytes"));
  spec.name = "t";
  const int no_dtype = 8;  // which a C program may well pass
  static_assert(sizeof no_dtype == sizeof spec.dtype);
  std::memcpy(&spec.dtype, &no_dtype, sizeof no_dtype);
  CHECK_THAT(refused(BPS_INVALID_ARGUMENT), Contains("dtype 8"));
  spec.dtype = BPS_F32;
  spec.count = (1ull << 40) + 1;
  CHECK_THAT(refused(BPS_INVALID_ARGUMENT), Contains("elements"));
  spec.count = 4;
  spec.mode = 5;
  CHECK_THAT(refused(BPS_INVALID_ARGUMENT), Contains("mode 5"));
  spec.mode = BPS_MODE_DEFAULT;
  client.declare("t", 4);
  spec.count = 5;
  CHECK_THAT(refused(BPS_CONFIGURATION), Contains("'t'") && Contains("4") && Contains("5"));
  CHECK(why.error.exit_code == 78);
  CHECK(bps_declare(client, &spec, 0, nullptr, kSoon, why) == BPS_OK);
  CHECK(bps_declare(client, nullptr, 1, &tensor, kSoon, why) == BPS_INVALID_ARGUMENT);
}

TEST_CASE("c api: many tensors at once, empty ones too") {
  OpenClient client;
  std::vector<std::string> names;
  std::vector<bps_tensor_spec> specs(3000, BPS_TENSOR_SPEC_INIT);
  for (std::size_t i = 0; i < specs.size(); ++i)
    names.push_back("tensor." + std::to_string(i));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i].name = names[i].c_str();
    specs[i].count = i % 3;
  }
  std::vector<bps_tensor> tensors(specs.size());
  REQUIRE(bps_declare(client, specs.data(), specs.size(), tensors.data(), kSoon, nullptr) == BPS_OK);
  std::vector<float> empty, two{1, 2};
  bps_handle* a = client.push_pull(tensors[0], empty, empty);
  bps_handle* b = client.push_pull(tensors[2], two, two);
  CHECK(bps_wait(a, kSoon, nullptr) == BPS_OK);
  CHECK(bps_wait(b, kSoon, nullptr) == BPS_OK);
  CHECK(bps_handle_ranks(a) == 1);
  bps_handle_free(a);
  bps_handle_free(b);
}

TEST_CASE("c api: under way: a second one is refused, a wait expires with its reason, close cancels") {
  const bps::ExpectLog lost("is gone: connection lost");  // who gives up is, and the other one waits for it
  const TwoWorkers job;
  const OpenClient& client = job.a;
  std::vector<float> data(10, 1.0f);
  bps_handle* handle = job.pending("delta", data);
  const bps_tensor tensor = client.declare("delta", 10);
  const bps_buffer buffer = OpenClient::buffer(data);
  bps_handle* second = nullptr;
  Refusal why;
  CHECK(bps_push_pull(client, tensor, &buffer, &buffer, BPS_SUM, &second, why) == BPS_INVALID_ARGUMENT);
  CHECK_THAT(why.message(), Contains("'delta' is under way"));
  CHECK_THAT(explained([&](bps_error* error) { return bps_wait(handle, 20, error); }, "round 0 of delta"),
             Contains("waited 0.02 s for round 0 of delta: 0 of 1 partitions answered; waiting for server"));
  int done = 1;
  CHECK(bps_poll(handle, &done) == BPS_OK);
  CHECK(done == 0);
  CHECK(bps_handle_ranks(handle) == 0);
  auto waiter = std::async(std::launch::async, [&] { return bps_wait(handle, kSoon, nullptr); });
  CHECK(bps_close(client, 20, why) == BPS_OK);
  CHECK(waiter.get() == BPS_CANCELLED);
  CHECK(bps_wait(handle, 0, why) == BPS_CANCELLED);
  bps_handle_free(handle);
}

TEST_CASE("c api: a handle may go before its operation, and outlive its client") {
  const bps::ExpectLog lost("is gone: connection lost");  // who gives up is, and the other one waits for it
  std::vector<float> first(10, 1.0f), second(10, 2.0f);
  bps_handle* kept = nullptr;
  {
    const TwoWorkers job;
    bps_handle_free(job.pending("a", first));
    kept = job.pending("b", second);
    CHECK(bps_close(job.a, 0, nullptr) == BPS_OK);
  }
  Refusal why;
  CHECK(bps_wait(kept, 0, why) == BPS_CANCELLED);
  CHECK(bps_then(
            kept, [](const bps_error*, void*) {}, nullptr, why) == BPS_CLOSED);
  bps_handle_free(kept);
}

TEST_CASE("c api: callbacks run once each, on their own thread, and must not wait") {
  const bps::ExpectLog lost("is gone: connection lost");  // who gives up is, and the other one waits for it
  const TwoWorkers job;
  const OpenClient& client = job.a;
  struct Calls {
    bps_client* client;
    bps_handle* handle = nullptr;
    std::promise<void> late;
    std::atomic<int> early{0};
    bps_status waited = BPS_OK, closed = BPS_OK, barrier = BPS_OK;
    bool failed = true;
  } calls{client, nullptr, {}, {}};
  std::vector<float> data(100, 1.0f);
  calls.handle = job.pending("t", data);
  const auto early = [](const bps_error*, void* user) { ++static_cast<Calls*>(user)->early; };
  const auto late = [](const bps_error* error, void* user) {
    auto& c = *static_cast<Calls*>(user);
    c.failed = error != nullptr;
    c.waited = bps_wait(c.handle, 0, nullptr);
    c.closed = bps_close(c.client, 0, nullptr);
    c.barrier = bps_barrier(c.client, 0, nullptr);
    c.late.set_value();
  };
  CHECK(bps_then(calls.handle, early, &calls, nullptr) == BPS_OK);
  std::vector<float> others(100, 2.0f);
  bps_handle* other = job.b.push_pull(job.b.declare("t", 100), others, others);
  CHECK(bps_wait(other, kSoon, nullptr) == BPS_OK);
  bps_handle_free(other);
  CHECK(bps_wait(calls.handle, kSoon, nullptr) == BPS_OK);
  CHECK(bps_then(calls.handle, early, &calls, nullptr) == BPS_OK);
  CHECK(bps_then(calls.handle, late, &calls, nullptr) == BPS_OK);
  CHECK(bps_then(calls.handle, nullptr, &calls, nullptr) == BPS_INVALID_ARGUMENT);
  REQUIRE(calls.late.get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  CHECK(calls.early == 2);
  CHECK_FALSE(calls.failed);
  CHECK(calls.waited == BPS_INVALID_ARGUMENT);
  CHECK(calls.closed == BPS_INVALID_ARGUMENT);
  CHECK(calls.barrier == BPS_INVALID_ARGUMENT);
  bps_handle_free(calls.handle);

  // A pending callback gets the error that ends its operation, before close returns.
  struct Ended {
    int calls = 0;
    bps_status status = BPS_OK;
  } ended;
  bps_handle* handle = job.pending("delta", data);
  const auto note = [](const bps_error* error, void* user) {
    auto& e = *static_cast<Ended*>(user);
    ++e.calls;
    e.status = error == nullptr ? BPS_OK : error->status;
  };
  CHECK(bps_then(handle, note, &ended, nullptr) == BPS_OK);
  CHECK(bps_close(client, 0, nullptr) == BPS_OK);
  CHECK(ended.calls == 1);
  CHECK(ended.status == BPS_CANCELLED);
  bps_handle_free(handle);
}

TEST_CASE("c api: a descriptor to poll") {
  OpenClient client;
  std::vector<float> data(100, 1.0f);
  bps_handle* handle = client.push_pull(client.declare("t", 100), data, data);
  int fd = -1;
  REQUIRE(bps_handle_fd(handle, &fd, nullptr) == BPS_OK);
  pollfd entry{fd, POLLIN, 0};
  CHECK(::poll(&entry, 1, static_cast<int>(kSoon)) == 1);
  CHECK(bps_wait(handle, 0, nullptr) == BPS_OK);
  bps_handle_free(handle);
  CHECK(::fcntl(fd, F_GETFD) == -1);
}

TEST_CASE("c api: the library's threads block signals") {
  OpenClient client;
  int seen = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    std::string line, name, blocked;
    while (std::getline(status, line)) {
      if (line.rfind("Name:", 0) == 0) name = line.substr(6);
      if (line.rfind("SigBlk:", 0) == 0) blocked = line.substr(8);
    }
    if (name.rfind("bps-", 0) != 0) continue;
    ++seen;
    // SIGTERM and SIGINT, bits 14 and 1.
    CHECK((std::stoull(blocked, nullptr, 16) & 0x4002) == 0x4002);
  }
  CHECK(seen >= 2);
}

TEST_CASE("c api: a forked child must not use its parent's client") {
  const TwoWorkers job;
  const OpenClient& client = job.a;
  std::vector<float> data(10, 1.0f);
  bps_handle* handle = job.pending("delta", data);
  const bps_tensor tensor = client.declare("delta", 10);
  const pid_t child = ::fork();
  if (child == 0) {
    bps_error error = BPS_ERROR_INIT;
    const bps_buffer buffer = OpenClient::buffer(data);
    bps_handle* other = nullptr;
    int wrong = 0;
    wrong += bps_push_pull(client, tensor, &buffer, &buffer, BPS_SUM, &other, &error) != BPS_CLOSED;
    wrong += std::strstr(error.message, "fork") == nullptr;
    wrong += bps_wait(handle, 100, &error) != BPS_CLOSED;
    wrong += bps_barrier(client, 100, &error) != BPS_CLOSED;
    wrong += bps_close(client, 100, &error) != BPS_CLOSED;
    bps_handle_free(handle);
    bps_free(client);
    ::_exit(wrong);
  }
  REQUIRE(child > 0);
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  std::vector<float> others(10, 2.0f);
  bps_handle* other = job.b.push_pull(tensor, others, others);
  CHECK(bps_wait(other, kSoon, nullptr) == BPS_OK);
  bps_handle_free(other);
  CHECK(bps_wait(handle, kSoon, nullptr) == BPS_OK);
  bps_handle_free(handle);
}

TEST_CASE("c api: two workers sum, and the one that stays learns that the other has left") {
  const bps::ExpectLog left("can never complete: rank 1 has left the job");
  const TwoWorkers job;
  const std::size_t count = 100'000;
  std::vector<float> one(count, 1.0f), two(count, 2.0f), sum(count);
  const bps_tensor tensor = job.a.declare("t", count);
  CHECK(job.b.declare("t", count) == tensor);
  bps_handle* a = job.a.push_pull(tensor, one, sum);
  bps_handle* b = job.b.push_pull(tensor, two, two);
  CHECK(bps_wait(a, kSoon, nullptr) == BPS_OK);
  CHECK(bps_wait(b, kSoon, nullptr) == BPS_OK);
  CHECK(bps_handle_ranks(a) == 2);
  CHECK(sum == std::vector<float>(count, 3.0f));
  CHECK(two == sum);
  bps_handle_free(a);
  bps_handle_free(b);

  a = job.a.push_pull(tensor, one, sum);
  CHECK(bps_close(job.b, kSoon, nullptr) == BPS_OK);
  Refusal why;
  CHECK(bps_wait(a, kSoon, why) != BPS_OK);
  CHECK_THAT(why.message(), Contains("rank 1"));
  CHECK(bps_barrier(job.a, kSoon, why) != BPS_OK);
  CHECK_THAT(why.message(), Contains("rank 1"));
  bps_handle_free(a);
}

TEST_CASE("c api: two workers reduce to one, which alone needs an output") {
  const TwoWorkers job;
  const std::size_t count = 100'000;
  std::vector<float> one(count, 1.0f), two(count, 2.0f), sum(count);
  const bps_tensor tensor = job.a.declare("t", count);
  CHECK(job.b.declare("t", count) == tensor);
  const bps_buffer in_a = OpenClient::buffer(one), in_b = OpenClient::buffer(two),
                   out = OpenClient::buffer(sum);
  bps_handle *a = nullptr, *b = nullptr;
  for (const int32_t root : {1, 0}) {
    std::fill(sum.begin(), sum.end(), 0.0f);
    REQUIRE(bps_reduce(job.a, tensor, &in_a, root == 0 ? &out : nullptr, BPS_SUM, root, &a, nullptr) ==
            BPS_OK);
    REQUIRE(bps_reduce(job.b, tensor, &in_b, root == 1 ? &out : nullptr, BPS_SUM, root, &b, nullptr) ==
            BPS_OK);
    for (bps_handle* const handle : {a, b}) {
      const bool is_root = (handle == a) == (root == 0);
      CHECK(bps_wait(handle, kSoon, nullptr) == BPS_OK);
      CHECK(bps_handle_ranks(handle) == (is_root ? 2 : 1));
      bps_handle_free(handle);
    }
    CHECK(sum == std::vector<float>(count, 3.0f));
    CHECK(one == std::vector<float>(count, 1.0f));
    CHECK(two == std::vector<float>(count, 2.0f));
  }
  Refusal why;
  CHECK(bps_reduce(job.a, tensor, &in_a, nullptr, BPS_SUM, 0, &a, why) == BPS_INVALID_ARGUMENT);
  CHECK_THAT(why.message(), Contains("buffer 'out' is NULL"));
  CHECK(bps_reduce(job.a, tensor, nullptr, &out, BPS_SUM, 0, &a, why) == BPS_INVALID_ARGUMENT);
  CHECK(bps_reduce(job.a, tensor, &in_a, &out, BPS_SUM, 2, &a, why) == BPS_INVALID_ARGUMENT);
  CHECK_THAT(why.message(), Contains("root 2 is no rank of this job"));
  CHECK(bps_reduce(job.a, tensor, &in_a, &out, static_cast<bps_reduce_op>(9), 0, &a, why) ==
        BPS_INVALID_ARGUMENT);
  CHECK(bps_reduce(nullptr, tensor, &in_a, &out, BPS_SUM, 0, &a, why) == BPS_INVALID_ARGUMENT);
}

TEST_CASE("c api: ranks that call different things on a tensor lose it, with one error, and nothing else") {
  const bps::ExpectLog differ("round 0 of t (partition 0): rank");
  const TwoWorkers job;
  const std::size_t count = 1'000'000;  // several partitions
  std::vector<float> one(count, 1.0f), two(count, 2.0f), sum(count);
  const bps_tensor tensor = job.a.declare("t", count), other = job.a.declare("u", count);
  CHECK(job.b.declare("t", count) == tensor);
  CHECK(job.b.declare("u", count) == other);
  bps_handle* a = job.a.push_pull(tensor, one, sum);
  const bps_buffer in = OpenClient::buffer(two), out = OpenClient::buffer(two);
  bps_handle* b = nullptr;
  REQUIRE(bps_push_pull(job.b, tensor, &in, &out, BPS_MAX, &b, nullptr) == BPS_OK);
  Refusal first, second;
  CHECK(bps_wait(a, kSoon, first) == BPS_CONFIGURATION);
  CHECK(bps_wait(b, kSoon, second) == BPS_CONFIGURATION);
  CHECK_THAT(first.message(), Contains("rank 0 calls sum") && Contains("rank 1 calls max"));
  CHECK_THAT(second.message(), Contains("rank 0 calls sum") && Contains("rank 1 calls max"));
  bps_handle_free(a);
  bps_handle_free(b);
  Refusal later;
  b = job.b.push_pull(tensor, two, two);
  CHECK(bps_wait(b, kSoon, later) == BPS_CONFIGURATION);
  CHECK(later.message() == second.message());
  bps_handle_free(b);

  a = job.a.push_pull(other, one, sum);
  b = job.b.push_pull(other, two, two);
  CHECK(bps_wait(a, kSoon, nullptr) == BPS_OK);
  CHECK(bps_wait(b, kSoon, nullptr) == BPS_OK);
  CHECK(sum == std::vector<float>(count, 3.0f));
  bps_handle_free(a);
  bps_handle_free(b);
}

TEST_CASE("c api: several clients in one process, used from several threads") {
  std::vector<std::future<bool>> threads;
  for (int t = 0; t < 3; ++t) {
    threads.push_back(std::async(std::launch::async, [t] {
      const std::string job = "job-" + std::to_string(t);
      bps_options options = embedded_options();
      options.job = job.c_str();
      bps_options_set(&options, "retain", t % 2 == 0 ? "false" : "true", nullptr);
      bps_client* client = nullptr;
      if (bps_open(&options, &client, nullptr) != BPS_OK) return false;
      std::vector<std::future<bool>> users;
      for (int u = 0; u < 3; ++u) {
        users.push_back(std::async(std::launch::async, [client, u] {
          const std::string name = "tensor-" + std::to_string(u);
          bps_tensor_spec spec = BPS_TENSOR_SPEC_INIT;
          spec.name = name.c_str();
          spec.count = 100'000;
          bps_tensor tensor = 0;
          if (bps_declare(client, &spec, 1, &tensor, kSoon, nullptr) != BPS_OK) return false;
          std::vector<float> data(spec.count);
          for (int round = 0; round < 20; ++round) {
            std::fill(data.begin(), data.end(), static_cast<float>(round * 10 + u));
            const bps_buffer buffer = OpenClient::buffer(data);
            bps_handle* handle = nullptr;
            if (bps_push_pull(client, tensor, &buffer, &buffer, BPS_SUM, &handle, nullptr) != BPS_OK)
              return false;
            const bool well =
                bps_wait(handle, kSoon, nullptr) == BPS_OK && data[777] == static_cast<float>(round * 10 + u);
            bps_handle_free(handle);
            if (!well) return false;
          }
          return true;
        }));
      }
      bool well = true;
      for (auto& user : users)
        well = user.get() && well;
      well = bps_close(client, kSoon, nullptr) == BPS_OK && well;
      bps_free(client);
      return well;
    }));
  }
  for (auto& thread : threads)
    CHECK(thread.get());
}

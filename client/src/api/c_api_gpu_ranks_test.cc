// Ranks that sum on the GPUs of their hosts first, by NCCL, through the C API.
#include <functional>
#include <numeric>
#include <thread>

#include "client/src/api/testing/gpu_api_harness.h"

namespace bps::testing {
namespace {

using Catch::Contains;

// Hosts with so many ranks each; all in this process, which speaks for each of them.
class GpuJob {
 public:
  explicit GpuJob(const std::vector<std::uint32_t>& hosts) {
    const auto quiet = LogTarget::to_callback([](auto...) {}, LogLevel::off);
    cluster_ = std::move(EmbeddedCluster::start(Logger("test", quiet), nullptr)).value();
    const auto size = std::accumulate(hosts.begin(), hosts.end(), 0u);
    for (std::uint32_t rank = 0; rank < size; ++rank)
      ranks.push_back(std::make_unique<GpuWorker>(FakeCuda::Options{.seed = rank + 1}, &world_));
    std::vector<std::pair<GivenSettings, Environment>> settings;
    for (std::size_t host = 0; host < hosts.size(); ++host) {
      for (std::uint32_t local = 0; local < hosts[host]; ++local) {
        const GivenSettings given{{"scheduler", to_string(cluster_->scheduler())},
                                  {"rank", std::to_string(settings.size())},
                                  {"world-size", std::to_string(size)},
                                  {"local-group", "nccl"}};
        settings.emplace_back(given, Environment{{"BPS_HOST", "host-" + std::to_string(host)}});
      }
    }
    std::vector<Status> opened(size);
    at_once([&](std::size_t rank) {
      opened[rank] = ranks[rank]->open(settings[rank].first, settings[rank].second);
    });
    for (const Status& status : opened) {
      INFO((status.ok() ? "" : status.error().message));
      REQUIRE(status.ok());
    }
  }
  ~GpuJob() {
    close();
    ranks.clear();
    CHECK(world_.differences() == std::vector<std::string>{});
  }
  void close() {
    at_once([&](std::size_t rank) { ranks[rank]->close(); });
  }
  void at_once(const std::function<void(std::size_t)>& act) const {
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      threads.emplace_back([&act, rank] { act(rank); });
    for (std::thread& thread : threads)
      thread.join();
  }
  bps_tensor declare(const char* name, std::uint64_t count, bps_dtype dtype) const {
    bps_tensor tensor = 0;
    for (const auto& rank : ranks)
      tensor = rank->declare(name, count, dtype);
    return tensor;
  }
  std::vector<std::string> wait(const std::vector<bps_handle*>& handles) const {
    std::vector<std::string> said;
    for (bps_handle* handle : handles)
      said.push_back(GpuWorker::wait(handle));
    return said;
  }

 private:
  std::unique_ptr<EmbeddedCluster> cluster_;
  FakeNcclWorld world_;

 public:
  std::vector<std::unique_ptr<GpuWorker>> ranks;
};

std::vector<std::int32_t> numbers_of(std::size_t rank, std::size_t count) {
  std::vector<std::int32_t> all(count);
  for (std::size_t i = 0; i < count; ++i)
    all[i] = static_cast<std::int32_t>((i * (rank + 3)) % 1009) - 500;
  return all;
}

std::int32_t combined(bps_reduce_op operation, std::int32_t a, std::int32_t b) {
  if (operation == BPS_MIN) return std::min(a, b);
  if (operation == BPS_MAX) return std::max(a, b);
  return a + b;
}

TEST_CASE(
    "gpu ranks: sums, minima, maxima and broadcasts are right on hosts of equal and of different sizes") {
  const auto hosts = GENERATE(std::vector<std::uint32_t>{2, 2}, std::vector<std::uint32_t>{3, 1},
                              std::vector<std::uint32_t>{1, 1});
  GpuJob job(hosts);
  const std::size_t count = GENERATE(7, 200'001);
  const std::vector<std::string> well(job.ranks.size());
  const bps_tensor tensor = job.declare("weights", count, BPS_I32);
  std::vector<std::int32_t*> in, out;
  for (std::size_t r = 0; r < job.ranks.size(); ++r) {
    in.push_back(job.ranks[r]->on_device(numbers_of(r, count)));
    out.push_back(job.ranks[r]->on_device(std::vector<std::int32_t>(count)));
  }
  const auto is_everywhere = [&](const std::vector<std::int32_t*>& memory,
                                 const std::vector<std::int32_t>& expected) {
    for (const std::int32_t* at : memory) {
      if (std::memcmp(at, expected.data(), count * 4) != 0) return false;
    }
    return true;
  };
  for (const bps_reduce_op operation : {BPS_SUM, BPS_MIN, BPS_MAX, BPS_SUM}) {
    std::vector<std::int32_t> expected = numbers_of(0, count);
    std::vector<bps_handle*> handles;
    for (std::size_t r = 0; r < job.ranks.size(); ++r) {
      const GpuWorker& rank = *job.ranks[r];
      std::memset(out[r], 0, count * 4);
      handles.push_back(
          rank.push_pull(tensor, rank.buffer(in[r], count), rank.buffer(out[r], count), operation));
      const auto theirs = numbers_of(r, count);
      for (std::size_t i = 0; r > 0 && i < count; ++i)
        expected[i] = combined(operation, expected[i], theirs[i]);
    }
    CHECK(job.wait(handles) == well);
    CHECK(is_everywhere(out, expected));
  }
  for (std::size_t root = 0; root < job.ranks.size(); ++root) {
    std::vector<bps_handle*> handles;
    for (std::size_t r = 0; r < job.ranks.size(); ++r) {
      const GpuWorker& rank = *job.ranks[r];
      const auto mine = numbers_of(r, count);
      std::memcpy(out[r], mine.data(), count * 4);
      const bps_buffer buffer = rank.buffer(out[r], count);
      bps_handle* handle = nullptr;
      REQUIRE(bps_broadcast(rank.client, tensor, &buffer, static_cast<std::int32_t>(root), &handle,
                            nullptr) == BPS_OK);
      handles.push_back(handle);
    }
    CHECK(job.wait(handles) == well);
    CHECK(is_everywhere(out, numbers_of(root, count)));
  }
}

TEST_CASE(
    "gpu ranks: min and max of floats, in which NCCL would ignore a NaN, are refused alike on all hosts") {
  GpuJob job(GENERATE(std::vector<std::uint32_t>{2}, std::vector<std::uint32_t>{2, 1}));
  const bps_tensor floats = job.declare("weights", 10, BPS_F32);
  for (const auto& rank : job.ranks) {
    const bps_buffer buffer = rank->buffer(rank->on_device(std::vector<float>(10, 1)), 10);
    bps_handle* handle = nullptr;
    Refusal why;
    CHECK(bps_push_pull(rank->client, floats, &buffer, &buffer, BPS_MAX, &handle, why) ==
          BPS_INVALID_ARGUMENT);
    CHECK_THAT(why.message(), Contains("max of f32") && Contains("NCCL ignores NaN"));
    CHECK(handle == nullptr);
  }
}

TEST_CASE(
    "gpu ranks: averages of small integers, whose sum on a host could overflow, are refused in the call") {
  GpuJob job(std::vector<std::uint32_t>{2, 1});
  const bps_tensor numbers = job.declare("numbers", 10, BPS_I32);
  for (const auto& rank : job.ranks) {
    const bps_buffer buffer = rank->buffer(rank->on_device(std::vector<std::int32_t>(10, 1)), 10);
    bps_handle* handle = nullptr;
    Refusal why;
    CHECK(bps_push_pull(rank->client, numbers, &buffer, &buffer, BPS_AVERAGE, &handle, why) ==
          BPS_INVALID_ARGUMENT);
    CHECK_THAT(why.message(), Contains("'numbers' is i32: its sum on a host could exceed that"));
    CHECK(handle == nullptr);
  }
}

TEST_CASE("gpu ranks: averages come in place, many tensors at once, and streams wait for them") {
  GpuJob job({2, 2});
  constexpr std::size_t kTensors = 12;
  std::vector<bps_tensor> tensors;
  std::vector<std::vector<float*>> memory(job.ranks.size());
  for (std::size_t t = 0; t < kTensors; ++t)
    tensors.push_back(job.declare(("layer" + std::to_string(t)).c_str(), 1000 + 30'000 * (t % 3), BPS_F32));
  std::vector<bps_handle*> handles;
  for (std::size_t r = 0; r < job.ranks.size(); ++r) {
    GpuWorker& rank = *job.ranks[r];
    for (std::size_t t = 0; t < kTensors; ++t) {
      const std::size_t count = 1000 + 30'000 * (t % 3);
      memory[r].push_back(rank.on_device(std::vector<float>(count, static_cast<float>(4 * (t + r)))));
    }
    for (std::size_t t = 0; t < kTensors; ++t) {
      // Each rank begins with another tensor.
      const std::size_t at = (t + 5 * r) % kTensors;
      const bps_buffer buffer = rank.buffer(memory[r][at], 1000 + 30'000 * (at % 3));
      handles.push_back(rank.push_pull(tensors[at], buffer, buffer, BPS_AVERAGE));
    }
  }
  for (std::size_t r = 0; r < job.ranks.size(); ++r) {
    bps_handle* const last = handles[(r + 1) * kTensors - 1];
    CHECK(bps_handle_wait_stream(last, job.ranks[r]->stream, nullptr) == BPS_OK);
  }
  for (std::size_t r = 0; r < job.ranks.size(); ++r) {
    const std::size_t at = (kTensors - 1 + 5 * r) % kTensors;
    job.ranks[r]->read_later(memory[r][at]);
    CHECK(job.ranks[r]->stream_is_over());
    CHECK(job.ranks[r]->read() == static_cast<float>(4 * at + 6));
  }
  CHECK(job.wait(handles) == std::vector<std::string>(handles.size()));
  std::size_t wrong = 0;
  for (std::size_t r = 0; r < job.ranks.size(); ++r) {
    for (std::size_t t = 0; t < kTensors; ++t) {
      for (std::size_t i = 0; i < 1000 + 30'000 * (t % 3); ++i)
        wrong += memory[r][t][i] != static_cast<float>(4 * t + 6) ? 1 : 0;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("gpu ranks: host memory is refused") {
  GpuJob job({2});
  job.declare("weights", 10, BPS_F32);
  std::vector<float> host(10);
  const bps_buffer buffer = GpuWorker::on_host(host);
  CHECK_THAT(job.ranks[0]->refusal(0, buffer, &buffer, BPS_INVALID_ARGUMENT),
             Contains("local-group is nccl"));
}

// All ranks end, and the one where it was says what.
TEST_CASE("gpu ranks: what fails on one GPU ends the job, and no process") {
  const int what = GENERATE(0, 1, 2);
  const ExpectLog failed("job gpus failed: rank 1 (host host-0");
  GpuJob job({2, 1});
  const bps_tensor tensor = job.declare("weights", 1000, BPS_F32);
  std::vector<bps_handle*> handles;
  std::vector<float*> memory;
  for (const auto& rank : job.ranks)
    memory.push_back(rank->on_device(std::vector<float>(1000, 1)));
  GpuWorker& bad = *job.ranks[1];
  if (what == 0) bad.nccl->break_async(NcclCode::remote_error);
  if (what == 1) bad.nccl->fail_next(NcclCall::group_end, 0, NcclCode::system_error);
  if (what == 2) bad.cuda->lose_device(CudaCode::launch_failed);
  for (std::size_t r = 0; r < job.ranks.size(); ++r) {
    const GpuWorker& rank = *job.ranks[r];
    const bps_buffer buffer = rank.buffer(memory[r], 1000);
    bps_handle* handle = nullptr;
    Refusal why;
    if (bps_push_pull(rank.client, tensor, &buffer, &buffer, BPS_SUM, &handle, why) != BPS_OK) {
      // It is lost in the call already; the others hear of it when this one gives up.
      CHECK(what == 2);
      CHECK_THAT(why.message(), Contains("on GPU 0"));
      CHECK(bps_abandon(rank.client, nullptr) == BPS_OK);
      continue;
    }
    handles.push_back(handle);
  }
  const auto said = job.wait(handles);
  for (const std::string& text : said)
    CHECK(text != "");
  if (what != 2) CHECK_THAT(said[1], Contains("round 0 of 'weights' on the GPU") && Contains("nccl"));
}

TEST_CASE("gpu ranks: a wait that expires says that NCCL is what it waits for, and which ranks that needs") {
  const ExpectLog failed("job gpus failed: rank 1 (host host-0");
  GpuJob job({2});
  const bps_tensor tensor = job.declare("weights", 1000, BPS_F32);
  GpuWorker& bad = *job.ranks[1];
  bad.nccl->stay_in_progress();
  std::vector<bps_handle*> handles;
  for (const auto& rank : job.ranks) {
    const bps_buffer buffer = rank->buffer(rank->on_device(std::vector<float>(1000, 1)), 1000);
    handles.push_back(rank->push_pull(tensor, buffer, buffer));
  }
  // When it has come to that.
  const TimePoint by = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::string text;
  while (text.find("in progress") == std::string::npos && std::chrono::steady_clock::now() < by) {
    Refusal why;
    REQUIRE(bps_wait(handles[1], 100, why) == BPS_DEADLINE);
    text = why.message();
  }
  CHECK_THAT(text, Contains("round 0 of weights: ") && Contains("; NCCL on GPU 0 (Fake 0) has") &&
                       Contains("nccl") && Contains("in progress") &&
                       Contains("which needs rank 0 of this host"));
  bad.nccl->break_async(NcclCode::remote_error);
  for (const std::string& said : job.wait(handles))
    CHECK(said != "");
}

}  // namespace
}  // namespace bps::testing

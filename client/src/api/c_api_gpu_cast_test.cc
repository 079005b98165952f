// f32 in the memory of GPUs, bf16 or f16 on the network, through the C API.
#include "client/src/api/testing/gpu_api_harness.h"

namespace bps::testing {
namespace {

using Catch::Contains;

TEST_CASE("gpu cast: a worker's sums are rounded once, in place and elsewhere, and half of the bytes go") {
  const bps_dtype wire = GENERATE(BPS_BF16, BPS_F16);
  GpuWorker g;
  REQUIRE(g.open().ok());
  constexpr std::size_t kCount = 300'001;  // several partitions
  const bps_tensor tensor = g.declare("weights", kCount, BPS_F32, BPS_MODE_SYNC, wire);
  std::vector<float> input(kCount);
  for (std::size_t i = 0; i < kCount; ++i)
    input[i] = input_of(0, i);
  float* const in = g.on_device(input);
  float* const out = g.on_device(std::vector<float>(kCount));
  const auto expected = [&](std::size_t i) { return rounded(input_of(0, i), wire); };
  for (int round = 0; round < 2; ++round) {
    std::memset(out, 0, kCount * 4);
    CHECK(GpuWorker::wait(g.push_pull(tensor, g.buffer(in, kCount), g.buffer(out, kCount), BPS_AVERAGE)) ==
          "");
    CHECK(differing(out, kCount, expected) == 0);
    CHECK(std::memcmp(in, input.data(), kCount * 4) == 0);
  }
  bps_stats stats;
  stats.struct_size = sizeof stats;
  REQUIRE(bps_get_stats(g.client, &stats) == BPS_OK);
  // Unless a lane has broken, and something was sent again.
  if (stats.resent == 0) CHECK(stats.pushed_bytes == 2 * 2 * kCount);
  CHECK(GpuWorker::wait(g.push_pull(tensor, g.buffer(in, kCount), g.buffer(in, kCount))) == "");
  CHECK(differing(in, kCount, expected) == 0);
}

struct Spec {
  explicit Spec(const char* name, std::int32_t wire, bps_dtype dtype = BPS_F32,
                bps_mode mode = BPS_MODE_SYNC) {
    raw.name = name;
    raw.dtype = dtype;
    raw.count = 10;
    raw.mode = mode;
    raw.wire_dtype = wire;
  }
  std::string refusal(const GpuWorker& g, bps_status expected) const {
    bps_tensor tensor = 0;
    Refusal why;
    CHECK(bps_declare(g.client, &raw, 1, &tensor, 30'000, why) == expected);
    return why.message();
  }
  bps_tensor_spec raw = BPS_TENSOR_SPEC_INIT;
};

TEST_CASE("gpu cast: what cannot be cast is refused") {
  GpuWorker g;
  REQUIRE(g.open().ok());
  CHECK_THAT(Spec("a", BPS_F16, BPS_F64).refusal(g, BPS_INVALID_ARGUMENT), Contains("'a' is f64"));
  CHECK_THAT(Spec("a", BPS_I8).refusal(g, BPS_INVALID_ARGUMENT),
             Contains("tensor 'a' is f32, with the wire_dtype i8"));
  CHECK_THAT(Spec("a", 99).refusal(g, BPS_INVALID_ARGUMENT),
             Contains("with the wire_dtype 99, which is none"));
  CHECK_THAT(Spec("a", BPS_BF16, BPS_F32, BPS_MODE_ASYNC).refusal(g, BPS_INVALID_ARGUMENT),
             Contains("is asynchronous"));
  CHECK(Spec("same", BPS_F32).refusal(g, BPS_OK) == "");
  // Declared again otherwise, by this client or alike.
  CHECK(Spec("weights", BPS_BF16).refusal(g, BPS_OK) == "");
  CHECK(Spec("weights", BPS_BF16).refusal(g, BPS_OK) == "");
  CHECK_THAT(Spec("weights", BPS_WIRE_DTYPE_SAME, BPS_BF16).refusal(g, BPS_CONFIGURATION),
             Contains("'weights' is declared as bf16 in this worker's memory, and was as f32 before"));
  const bps_tensor tensor = g.declare("weights", 10, BPS_F32, BPS_MODE_SYNC, BPS_BF16);
  std::vector<float> host(10);
  const bps_buffer on_host = GpuWorker::on_host(host);
  CHECK_THAT(g.refusal(tensor, on_host, &on_host, BPS_INVALID_ARGUMENT),
             Contains("given in the host's memory"));
  auto* const memory = reinterpret_cast<std::byte*>(g.on_device(std::vector<float>(20)));
  bps_buffer buffer = g.buffer(memory, 40);
  CHECK(GpuWorker::wait(g.push_pull(tensor, buffer, buffer)) == "");
  buffer.pointer = memory + 2;
  CHECK_THAT(g.refusal(tensor, buffer, &buffer, BPS_INVALID_ARGUMENT),
             Contains("not aligned to the 4 bytes"));
  buffer = g.buffer(memory, 20);
  CHECK_THAT(g.refusal(tensor, buffer, &buffer, BPS_INVALID_ARGUMENT),
             Contains("has 20 bytes") && Contains("10 elements of f32"));
}

TEST_CASE("gpu cast: a stream waits for what is cast, too, and loading waits for streams") {
  GpuWorker g;
  REQUIRE(g.open().ok());
  const bps_tensor plain = g.declare("plain", 10);
  float* const memory = g.on_device(std::vector<float>(10, 3));
  const bps_buffer buffer = g.buffer(memory, 10);
  CHECK(GpuWorker::wait(g.push_pull(plain, buffer, buffer)) == "");
  for (int round = 0; round < 5; ++round) {
    const bps_tensor tensor =
        g.declare(("cast" + std::to_string(round)).c_str(), 10, BPS_F32, BPS_MODE_SYNC, BPS_F16);
    for (const bps_tensor each : {plain, tensor}) {
      bps_handle* const handle = g.push_pull(each, buffer, buffer);
      CHECK(bps_handle_wait_stream(handle, g.stream, nullptr) == BPS_OK);
      CHECK(GpuWorker::wait(handle) == "");
    }
  }
  g.read_later(memory);
  CHECK(g.stream_is_over());
  CHECK(g.read() == 3);
}

TEST_CASE("gpu cast: a GPU that cannot load the kernels fails, and says why") {
  const ExpectLog failed("job gpus failed");
  GpuWorker g;
  REQUIRE(g.open().ok());
  g.cuda->fail_next(CudaCall::load_module, 0, CudaCode(221));
  const bps_tensor tensor = g.declare("weights", 10, BPS_F32, BPS_MODE_SYNC, BPS_F16);
  const bps_buffer buffer = g.buffer(g.on_device(std::vector<float>(10, 3)), 10);
  CHECK_THAT(GpuWorker::wait(g.push_pull(tensor, buffer, buffer)), Contains("cuModuleLoadData on GPU 0"));
}

}  // namespace
}  // namespace bps::testing

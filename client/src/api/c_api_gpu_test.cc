// A worker with a GPU, through the C API.
#include <algorithm>
#include <chrono>
#include <thread>

#include "client/src/api/testing/gpu_api_harness.h"

namespace bps::testing {
namespace {

using Catch::Contains;

std::vector<float> numbers(std::size_t count, float first = 1) {
  std::vector<float> all(count);
  for (std::size_t i = 0; i < count; ++i)
    all[i] = first + static_cast<float>(i % 1000);
  return all;
}

bool is_there(const float* memory, const std::vector<float>& expected) {
  return std::memcmp(memory, expected.data(), expected.size() * 4) == 0;
}

TEST_CASE("gpu api: sums of a GPU's memory come back, in place and elsewhere, next to the host's") {
  GpuWorker g;
  REQUIRE(g.open().ok());
  constexpr std::size_t kCount = 300'000;  // several partitions
  const auto input = numbers(kCount);
  const bps_tensor tensor = g.declare("weights", kCount);
  const bps_tensor other = g.declare("on the host", 10);
  float* const in = g.on_device(input);
  float* const out = g.on_device(std::vector<float>(kCount));
  std::vector<float> host = numbers(10, 5), host_out(10);
  for (int round = 0; round < 3; ++round) {
    std::memset(out, 0, kCount * 4);
    bps_handle* const on_host = g.push_pull(other, GpuWorker::on_host(host), GpuWorker::on_host(host_out));
    bps_handle* const handle = g.push_pull(tensor, g.buffer(in, kCount), g.buffer(out, kCount), BPS_AVERAGE);
    CHECK(GpuWorker::wait(handle) == "");
    CHECK(is_there(out, input));
    CHECK(GpuWorker::wait(on_host) == "");
    CHECK(host_out == host);
  }
  CHECK(GpuWorker::wait(g.push_pull(tensor, g.buffer(in, kCount), g.buffer(in, kCount))) == "");
  CHECK(is_there(in, input));
  // The same tensor, from the host.
  std::vector<float> plain = numbers(kCount, 3);
  CHECK(GpuWorker::wait(g.push_pull(tensor, GpuWorker::on_host(plain), GpuWorker::on_host(plain))) == "");
  CHECK((plain == numbers(kCount, 3)));
  bps_buffer buffer = g.buffer(in, kCount);
  bps_handle* handle = nullptr;
  REQUIRE(bps_broadcast(g.client, tensor, &buffer, 0, &handle, nullptr) == BPS_OK);
  CHECK(GpuWorker::wait(handle) == "");
  CHECK(is_there(in, input));
}

TEST_CASE("gpu api: a worker that gives no memory of a GPU touches none") {
  GpuWorker g;
  const std::uint64_t before = g.cuda->calls();
  REQUIRE(g.open().ok());
  const bps_tensor tensor = g.declare("weights", 10);
  std::vector<float> host = numbers(10);
  CHECK(GpuWorker::wait(g.push_pull(tensor, GpuWorker::on_host(host), GpuWorker::on_host(host))) == "");
  g.close();
  CHECK(g.cuda->calls() == before);
}

TEST_CASE("gpu api: memory that is not what it is said to be is refused in the call") {
  FakeCuda::Options options;
  options.devices = 2;
  GpuWorker g(options);
  REQUIRE(g.open().ok());
  const bps_tensor tensor = g.declare("weights", 100);
  float* const memory = g.on_device(numbers(100));
  const bps_buffer good = g.buffer(memory, 100);
  std::vector<float> host = numbers(100);
  bps_buffer bad = good;
  bad.pointer = host.data();
  CHECK_THAT(g.refusal(tensor, bad, &bad, BPS_INVALID_ARGUMENT), Contains("is not in any GPU's memory"));
  // What was said wrongly decides nothing.
  bad = good;
  bad.device = 0;
  CHECK_THAT(g.refusal(tensor, bad, &bad, BPS_INVALID_ARGUMENT), Contains("in the memory of GPU 1"));
  bad.device = 7;
  CHECK_THAT(g.refusal(tensor, bad, &bad, BPS_CONFIGURATION),
             Contains("there is no GPU 7: this process sees 2"));
  CHECK(GpuWorker::wait(g.push_pull(tensor, good, good)) == "");
  bad = good;
  bad.pointer = memory + 1;
  CHECK_THAT(g.refusal(tensor, bad, &bad, BPS_INVALID_ARGUMENT), Contains("beyond the memory"));
  bad.device = 0;
  CHECK_THAT(g.refusal(tensor, bad, &bad, BPS_INVALID_ARGUMENT),
             Contains("said to be in the memory of GPU 0"));
  const bps_buffer on_host = GpuWorker::on_host(host);
  CHECK_THAT(g.refusal(tensor, good, &on_host, BPS_INVALID_ARGUMENT), Contains("one of input and output"));
  CHECK_THAT(g.refusal(tensor, good, nullptr, BPS_INVALID_ARGUMENT), Contains("read in place"));
  const bps_tensor value = g.declare("value", 100, BPS_F32, BPS_MODE_ASYNC);
  CHECK_THAT(g.refusal(value, good, &good, BPS_INVALID_ARGUMENT), Contains("is asynchronous"));
  CHECK(GpuWorker::wait(g.push_pull(tensor, good, good)) == "");
}

TEST_CASE("gpu api: which GPU a client has is told, once it is known") {
  FakeCuda::Options options;
  options.devices = 2;
  const auto device_of = [](const GpuWorker& g) {
    bps_client_info info{};
    info.struct_size = sizeof info;
    CHECK(bps_get_client_info(g.client, &info) == BPS_OK);
    return info.cuda_device;
  };
  {
    GpuWorker g(options);
    REQUIRE(g.open().ok());
    CHECK(device_of(g) == -1);
    const bps_tensor tensor = g.declare("weights", 100);
    float* const memory = g.on_device(numbers(100));
    CHECK(GpuWorker::wait(g.push_pull(tensor, g.buffer(memory, 100), g.buffer(memory, 100))) == "");
    CHECK(device_of(g) == 1);
  }
  GpuWorker g(options);
  REQUIRE(g.open({}, {{"BPS_CUDA_DEVICE", "1"}}).ok());
  CHECK(device_of(g) == 1);
}

TEST_CASE("gpu api: without a driver or NCCL that is said, and host memory goes on") {
  GpuWorker g;
  g.no_driver = make_error(ErrorCode::configuration, "no GPU: libcuda.so.1: cannot open shared object file");
  REQUIRE(g.open().ok());
  const bps_tensor tensor = g.declare("weights", 100);
  float* const memory = g.on_device(numbers(100));
  const bps_buffer buffer = g.buffer(memory, 100);
  CHECK_THAT(g.refusal(tensor, buffer, &buffer, BPS_CONFIGURATION), Contains("no GPU: libcuda.so.1"));
  std::vector<float> host = numbers(100);
  CHECK(GpuWorker::wait(g.push_pull(tensor, GpuWorker::on_host(host), GpuWorker::on_host(host))) == "");
  g.close();
  const Status status = g.open({{"local-group", "nccl"}});
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::configuration);
  CHECK_THAT(status.error().message, Contains("local-group nccl is set, and there is no NCCL"));
}

TEST_CASE("gpu api: what a stream does after it was made to wait finds the output") {
  GpuWorker g;
  REQUIRE(g.open().ok());
  const bps_tensor tensor = g.declare("weights", 1000);
  float* const in = g.on_device(std::vector<float>(1000, 7));
  float* const out = g.on_device(std::vector<float>(1000));
  for (int round = 0; round < 5; ++round) {
    std::memset(out, 0, 4000);
    bps_handle* const handle = g.push_pull(tensor, g.buffer(in, 1000), g.buffer(out, 1000));
    Refusal why;
    CHECK(bps_handle_wait_stream(handle, g.stream, why) == BPS_OK);
    CHECK(why.message() == "");
    g.read_later(out);
    CHECK(g.stream_is_over());
    CHECK(g.read() == 7);
    CHECK(GpuWorker::wait(handle) == "");
  }
  std::vector<float> host = numbers(1000);
  bps_handle* const on_host = g.push_pull(tensor, GpuWorker::on_host(host), GpuWorker::on_host(host));
  CHECK(bps_handle_wait_stream(on_host, g.stream, nullptr) == BPS_INVALID_ARGUMENT);
  CHECK(GpuWorker::wait(on_host) == "");
}

TEST_CASE(
    "gpu api: a stream waits for each of its operations before it starts the next, in place or elsewhere") {
  GpuWorker g;
  REQUIRE(g.open().ok());
  constexpr int kTensors = 3;
  struct Place {
    bps_tensor tensor = 0;
    float* in = nullptr;
    float* out = nullptr;
  };
  std::vector<Place> places;
  for (int i = 0; i < kTensors; ++i) {
    const std::string name = "layer" + std::to_string(i);
    places.push_back({g.declare(name.c_str(), 100), g.on_device(std::vector<float>(100, 7)),
                      g.on_device(std::vector<float>(100))});
  }
  for (int round = 0; round < 20; ++round) {
    std::vector<bps_handle*> handles;
    for (const Place& place : places) {
      float* const out = round % 2 == 0 ? place.out : place.in;
      handles.push_back(g.push_pull(place.tensor, g.buffer(place.in, 100), g.buffer(out, 100)));
      Refusal why;
      CHECK(bps_handle_wait_stream(handles.back(), g.stream, why) == BPS_OK);
      CHECK(why.message() == "");
    }
    for (bps_handle* const handle : handles)
      CHECK(GpuWorker::wait(handle) == "");
  }
  CHECK(g.stream_is_over());
  for (const Place& place : places)
    CHECK(place.out[99] == 7);
}

TEST_CASE("gpu api: a GPU that fails ends the operation with its name, and the process lives") {
  const ExpectLog lost("job gpus failed");
  GpuWorker g;
  REQUIRE(g.open().ok());
  const bps_tensor tensor = g.declare("weights", 1000);
  float* const memory = g.on_device(std::vector<float>(1000, 7));
  CHECK(GpuWorker::wait(g.push_pull(tensor, g.buffer(memory, 1000), g.buffer(memory, 1000))) == "");
  g.cuda->fail_next(CudaCall::copy_to_host, 0, CudaCode::illegal_address, /*lost=*/true);
  bps_handle* const handle = g.push_pull(tensor, g.buffer(memory, 1000), g.buffer(memory, 1000));
  CHECK_THAT(GpuWorker::wait(handle), Contains("round 1 of 'weights' on the GPU") &&
                                          Contains("cuMemcpyDtoHAsync on GPU 0") && Contains("error 700"));
}

TEST_CASE(
    "gpu api: an operation whose stream never comes to it has a deadline, and a close that waits for "
    "nothing") {
  const ExpectLog lost("job gpus failed");
  const ExpectLog closes("closes in the middle of round 1 of weights");
  GpuWorker g;
  REQUIRE(g.open().ok());
  const bps_tensor tensor = g.declare("weights", 1000);
  float* const memory = g.on_device(std::vector<float>(1000, 7));
  CHECK(GpuWorker::wait(g.push_pull(tensor, g.buffer(memory, 1000), g.buffer(memory, 1000))) == "");
  const auto let_go = g.hold(g.stream);
  bps_handle* const handle = g.push_pull(tensor, g.buffer(memory, 1000), g.buffer(memory, 1000));
  CHECK_THAT(explained([&](bps_error* why) { return bps_wait(handle, 300, why); }, "round 1 of weights"),
             Contains("waiting for the work that its stream had"));
  bps_error error = BPS_ERROR_INIT;
  CHECK(bps_close(g.client, 100, &error) == BPS_OK);
  CHECK_THAT(GpuWorker::wait(handle), Contains("closed while the operation was under way"));
  let_go();
  CHECK(g.stream_is_over());
}

TEST_CASE(
    "gpu api: a close that a GPU does not come to rest for says what it may still touch, and so do "
    "operations") {
  const ExpectLog lost("job gpus failed"), left("has not come to rest");
  const ExpectLog closes("closes in the middle of round 1 of weights");
  GpuWorker g;
  g.gives_all_back = false;
  g.patience = {};
  REQUIRE(g.open().ok());
  const bps_tensor tensor = g.declare("weights", 1000);
  const bps_tensor other = g.declare("later", 1000);
  float* const memory = g.on_device(std::vector<float>(1000, 7));
  CHECK(GpuWorker::wait(g.push_pull(tensor, g.buffer(memory, 1000), g.buffer(memory, 1000))) == "");
  const auto let_go = g.hold(g.stream);
  float* const held = g.on_device(std::vector<float>(1000, 7));
  bps_handle* const waits = g.push_pull(other, g.buffer(held, 1000), g.buffer(held, 1000));
  CudaStream free = nullptr;
  REQUIRE(g.cuda->create_stream(free, 0) == CudaCode::success);
  bps_buffer buffer = g.buffer(memory, 1000);
  buffer.stream = free;
  const std::uint64_t copies = g.cuda->count(CudaCall::copy_to_host);
  g.cuda->hang_next(1);  // the copy, behind the event
  bps_handle* const handle = g.push_pull(tensor, buffer, buffer);
  const auto check_said = [](const std::string& message) {
    CHECK_THAT(message, Contains("GPU 0 (Fake 0) has not come to rest") &&
                            Contains("it may still read and write the memory that it was given"));
  };
  const TimePoint by = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (g.cuda->count(CudaCall::copy_to_host) == copies && std::chrono::steady_clock::now() < by)
    std::this_thread::yield();
  REQUIRE(g.cuda->count(CudaCall::copy_to_host) > copies);
  Refusal why;
  bps_status also = BPS_OK;
  std::thread other_thread([&] { also = bps_close(g.client, 0, nullptr); });  // whichever comes first
  CHECK(bps_close(g.client, 0, why) == BPS_OS);
  other_thread.join();
  CHECK(also == BPS_OS);
  check_said(why.message());
  CHECK_THAT(std::string(why.error.advice), Contains("until the process has ended"));
  CHECK(bps_wait(handle, 0, why) == BPS_OS);
  check_said(GpuWorker::wait(handle));
  CHECK(bps_wait(waits, 0, why) != BPS_OK);
  bps_handle_free(waits);
  CHECK(bps_close(g.client, 0, why) == BPS_OS);
  check_said(why.message());
  // Nothing of it has been given back before: that would be a misuse.
  let_go();
  g.cuda->lose_device(CudaCode::launch_failed);
}

TEST_CASE(
    "gpu api: a stream waits for the event of the last copy, which need not be over, and the host not for "
    "it") {
  GpuWorker g;
  REQUIRE(g.open().ok());
  const bps_tensor tensor = g.declare("weights", 1000);
  float* const memory = g.on_device(std::vector<float>(1000, 7));
  CHECK(GpuWorker::wait(g.push_pull(tensor, g.buffer(memory, 1000), g.buffer(memory, 1000))) == "");
  CudaStream other = nullptr;
  REQUIRE(g.cuda->create_stream(other, 0) == CudaCode::success);
  g.cuda->hold_copies(CudaCall::copy_to_device);
  const std::uint64_t waits = g.cuda->count(CudaCall::wait_event);
  bps_handle* const handle = g.push_pull(tensor, g.buffer(memory, 1000), g.buffer(memory, 1000));
  // Several threads, each with a stream of its own.
  Refusal why, why_other;
  bps_status status_other = BPS_INTERNAL;
  std::thread beside([&] { status_other = bps_handle_wait_stream(handle, other, why_other); });
  const bps_status status = bps_handle_wait_stream(handle, g.stream, why);
  beside.join();
  CHECK(status == BPS_OK);
  CHECK(why.message() == "");
  CHECK(status_other == BPS_OK);
  CHECK(why_other.message() == "");
  CHECK(g.cuda->count(CudaCall::wait_event) == waits + 2);
  int done = 1;
  CHECK(bps_poll(handle, &done) == BPS_OK);
  CHECK(done == 0);
  CHECK(g.cuda->query_stream(g.stream) == CudaCode::not_ready);
  CHECK(g.cuda->query_stream(other) == CudaCode::not_ready);
  g.read_later(memory);
  g.cuda->release_copies();
  CHECK(g.stream_is_over());
  CHECK(g.read() == 7);
  CHECK(GpuWorker::wait(handle) == "");
  // Of what has ended nothing is waited for.
  bps_handle* const again = g.push_pull(tensor, g.buffer(memory, 1000), g.buffer(memory, 1000));
  CHECK(bps_wait(again, 30'000, nullptr) == BPS_OK);
  CHECK(bps_handle_wait_stream(again, g.stream, nullptr) == BPS_OK);
  CHECK(g.cuda->count(CudaCall::wait_event) == waits + 2);
  bps_handle_free(again);
  while (g.cuda->query_stream(other) == CudaCode::not_ready) {}
  CHECK(g.cuda->destroy_stream(other) == CudaCode::success);
}

TEST_CASE(
    "gpu api: a stream that is made to wait has the deadline of operations, and its capture is refused") {
  const ExpectLog lost("job gpus failed");
  GpuWorker g;
  REQUIRE(g.open({{"operation-timeout", "300ms"}}).ok());
  const bps_tensor tensor = g.declare("weights", 1000);
  float* const memory = g.on_device(std::vector<float>(1000, 7));
  const auto let_go = g.hold(g.stream);
  bps_handle* const handle = g.push_pull(tensor, g.buffer(memory, 1000), g.buffer(memory, 1000));
  CudaStream other = nullptr;
  REQUIRE(g.cuda->create_stream(other, 0) == CudaCode::success);
  Refusal why;
  CHECK(bps_handle_wait_stream(handle, other, why) == BPS_DEADLINE);
  CHECK_THAT(why.message(), Contains("waited 0.3 s for round 0 of weights"));
  CHECK_THAT(std::string(why.error.advice), Contains("the stream does not wait for it"));
  CHECK(g.cuda->query_stream(other) == CudaCode::success);
  g.cuda->begin_capture(other);
  CHECK(bps_handle_wait_stream(handle, other, why) == BPS_INVALID_ARGUMENT);
  CHECK_THAT(why.message(), Contains("captured"));
  CHECK(g.cuda->end_capture());
  // After a bad end nothing is waited for.
  CHECK(bps_abandon(g.client, nullptr) == BPS_OK);
  CHECK(bps_handle_wait_stream(handle, other, nullptr) == BPS_OK);
  CHECK(g.cuda->query_stream(other) == CudaCode::success);
  CHECK_THAT(GpuWorker::wait(handle), Contains("closed while the operation was under way"));
  let_go();
  CHECK(g.stream_is_over());
  CHECK(g.cuda->destroy_stream(other) == CudaCode::success);
}

TEST_CASE("gpu api: where the driver makes no stream wait, the host waits for the end") {
  GpuWorker g;
  REQUIRE(g.open().ok());
  const bps_tensor tensor = g.declare("weights", 1000);
  float* const memory = g.on_device(std::vector<float>(1000, 7));
  CHECK(GpuWorker::wait(g.push_pull(tensor, g.buffer(memory, 1000), g.buffer(memory, 1000))) == "");
  g.cuda->hold_copies(CudaCall::copy_to_device);
  bps_handle* const handle = g.push_pull(tensor, g.buffer(memory, 1000), g.buffer(memory, 1000));
  g.cuda->fail_next(CudaCall::wait_event, 0, CudaCode::out_of_memory);
  std::thread frees([&] {
    const TimePoint by = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (g.cuda->count(CudaCall::wait_event) == 0 && std::chrono::steady_clock::now() < by)
      std::this_thread::yield();
    g.cuda->release_copies();
  });
  Refusal why;
  CHECK(bps_handle_wait_stream(handle, g.stream, why) == BPS_OK);
  frees.join();
  int done = 0;
  CHECK(bps_poll(handle, &done) == BPS_OK);
  CHECK(done == 1);
  CHECK(GpuWorker::wait(handle) == "");
}

TEST_CASE("gpu api: an operation copies once each way, and makes no call that waits for the device") {
  GpuWorker g;
  REQUIRE(g.open().ok());
  const bps_tensor tensor = g.declare("weights", 1000);
  float* const memory = g.on_device(std::vector<float>(1000, 7));
  const auto round = [&] {
    CHECK(GpuWorker::wait(g.push_pull(tensor, g.buffer(memory, 1000), g.buffer(memory, 1000))) == "");
  };
  round();
  round();
  const auto before = static_cast<std::ptrdiff_t>(g.cuda->calls());
  round();
  const auto all = g.cuda->order();
  const auto count = [&](CudaCall call) { return std::count(all.begin() + before, all.end(), call); };
  CHECK(count(CudaCall::describe_pointer) == 1);
  CHECK(count(CudaCall::copy_to_host) == 1);
  CHECK(count(CudaCall::copy_to_device) == 1);
  CHECK(count(CudaCall::record_event) == 3);
  for (const CudaCall call : {CudaCall::allocate, CudaCall::free, CudaCall::register_host,
                              CudaCall::unregister_host, CudaCall::create_stream, CudaCall::destroy_stream,
                              CudaCall::create_event, CudaCall::destroy_event, CudaCall::retain_context}) {
    INFO(name_of(call));
    CHECK(count(call) == 0);
  }
}

TEST_CASE(
    "gpu api: an answer of the host's is read in place when the client has ended, also next to a GPU's") {
  GpuWorker g;
  REQUIRE(g.open().ok());
  const bps_tensor tensor = g.declare("weights", 1000);
  float* const memory = g.on_device(std::vector<float>(1000, 7));
  CHECK(GpuWorker::wait(g.push_pull(tensor, g.buffer(memory, 1000), g.buffer(memory, 1000))) == "");
  std::vector<float> host = numbers(1000);
  const bps_buffer in = GpuWorker::on_host(host);
  bps_handle* handle = nullptr;
  REQUIRE(bps_push_pull(g.client, tensor, &in, nullptr, BPS_SUM, &handle, nullptr) == BPS_OK);
  CHECK(bps_wait(handle, 30'000, nullptr) == BPS_OK);
  g.close();
  bps_view view = BPS_VIEW_INIT;
  REQUIRE(bps_handle_view(handle, 0, &view, nullptr) == BPS_OK);
  CHECK(view.bytes == 4000);
  CHECK(std::memcmp(view.pointer, host.data(), 4000) == 0);
  bps_handle_free(handle);
}

TEST_CASE("gpu api: a tensor without elements is over at once, and a stream does not wait for it") {
  GpuWorker g;
  REQUIRE(g.open().ok());
  const bps_tensor tensor = g.declare("nothing", 0);
  const bps_buffer nothing = g.buffer(static_cast<float*>(nullptr), 0);
  bps_handle* const handle = g.push_pull(tensor, nothing, nothing);
  const TimePoint before = std::chrono::steady_clock::now();
  CHECK(bps_handle_wait_stream(handle, g.stream, nullptr) == BPS_OK);
  CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds(20));
  CHECK(GpuWorker::wait(handle) == "");
}

TEST_CASE("gpu api: input and output may be on streams of their own") {
  GpuWorker g;
  REQUIRE(g.open().ok());
  const bps_tensor tensor = g.declare("weights", 1000);
  float* const in = g.on_device(std::vector<float>(1000, 7));
  float* const out = g.on_device(std::vector<float>(1000));
  CudaStream other = nullptr;
  REQUIRE(g.cuda->create_stream(other, 0) == CudaCode::success);
  const auto let_go = g.hold(other);
  bps_buffer to = g.buffer(out, 1000);
  to.stream = other;
  bps_handle* const handle = g.push_pull(tensor, g.buffer(in, 1000), to);
  Refusal why;
  CHECK(bps_wait(handle, 200, why) == BPS_DEADLINE);
  CHECK(out[0] == 0);
  let_go();
  CHECK(GpuWorker::wait(handle) == "");
  CHECK(out[0] == 7);
  CHECK(g.cuda->destroy_stream(other) == CudaCode::success);
}

}  // namespace
}  // namespace bps::testing

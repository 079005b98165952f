// Every call of the driver fails in its turn, below an operation that the C API has begun.
#include "client/src/api/testing/gpu_api_harness.h"

namespace bps::testing {
namespace {

using Catch::Contains;

// What one operation says when a call fails, and whether it came to that.
struct Outcome {
  std::string message;
  bool is_in_call = false;  // of bps_push_pull
  bool has_failed = false;  // the call of the driver
};

class Faults {
 public:
  Faults() {
    const auto quiet = LogTarget::to_callback([](auto...) {}, LogLevel::off);
    cluster_ = std::move(EmbeddedCluster::start(Logger("test", quiet), nullptr)).value();
  }

  Outcome run(CudaCall call, std::uint64_t nth, CudaCode code, bool is_lost) {
    GpuWorker g;
    REQUIRE(g.open({{"scheduler", to_string(cluster_->scheduler())},
                    {"job", "job" + std::to_string(jobs_++)},
                    {"rank", "0"},
                    {"world-size", "1"}})
                .ok());
    const bps_tensor tensor = g.declare("weights", 100'000);
    const bps_tensor other = g.declare("on the host", 10);
    float* const memory = g.on_device(std::vector<float>(100'000, 7));
    const bps_buffer buffer = g.buffer(memory, 100'000);
    const std::uint64_t before = g.cuda->count(call);
    g.cuda->fail_next(call, nth, code, is_lost);
    Outcome outcome;
    bps_handle* handle = nullptr;
    Refusal why;
    if (bps_push_pull(g.client, tensor, &buffer, &buffer, BPS_SUM, &handle, why) == BPS_OK) {
      outcome.message = GpuWorker::wait(handle);
    } else {
      outcome.is_in_call = true;
      outcome.message = why.message();
      // Nothing has changed.
      std::vector<float> host(10, 3);
      CHECK(GpuWorker::wait(g.push_pull(other, GpuWorker::on_host(host), GpuWorker::on_host(host))) == "");
    }
    outcome.has_failed = g.cuda->count(call) > before + nth;
    if (outcome.message.empty()) CHECK(memory[99'999] == 7);
    const bool is_of_the_end = call == CudaCall::destroy_event || call == CudaCall::destroy_stream ||
                               call == CudaCall::free || call == CudaCall::unregister_host ||
                               call == CudaCall::release_context;
    g.gives_all_back = !is_of_the_end;
    return outcome;
  }

 private:
  std::unique_ptr<EmbeddedCluster> cluster_;
  int jobs_ = 0;
};

// What is asked again, or done without, when it is refused once.
bool may_be_refused(CudaCall call) {
  switch (call) {
    case CudaCall::register_host:  // then copies go by way of a small buffer
    case CudaCall::push_context:   // an error may be of work before it
    case CudaCall::pop_context:
    case CudaCall::exchange_capture_mode: return true;
    default: return false;
  }
}

TEST_CASE("gpu faults: whichever call fails, the operation ends with its name, the tensor's and the GPU's") {
  const CudaCode code = GENERATE(CudaCode::launch_failed, CudaCode::out_of_memory);
  const ExpectLog failed("job job");
  Faults faults;
  std::size_t seen = 0;
  for (std::uint8_t number = 0; number < kCudaCallCount; ++number) {
    const auto call = CudaCall(number);
    for (std::uint64_t nth = 0; nth < 4; ++nth) {
      const Outcome outcome = faults.run(call, nth, code, /*is_lost=*/false);
      INFO(name_of(call) << " " << nth << ": " << outcome.message);
      if (!outcome.has_failed) {
        CHECK(outcome.message == "");
        break;
      }
      ++seen;
      if (outcome.message.empty()) {
        CHECK(may_be_refused(call));
        continue;
      }
      CHECK_THAT(outcome.message, Contains(std::string(name_of(call))) && Contains("GPU"));
      if (!outcome.is_in_call) CHECK_THAT(outcome.message, Contains("'weights' on the GPU: "));
    }
  }
  CHECK(seen > 25);
}

TEST_CASE("gpu faults: a device that is lost at any call ends the operation, and no process") {
  const ExpectLog failed("job job");
  Faults faults;
  for (const CudaCall call :
       {CudaCall::describe_pointer, CudaCall::create_stream, CudaCall::register_host, CudaCall::record_event,
        CudaCall::query_event, CudaCall::copy_to_host, CudaCall::copy_to_device}) {
    const Outcome outcome = faults.run(call, 0, CudaCode::illegal_address, /*is_lost=*/true);
    INFO(name_of(call) << ": " << outcome.message);
    CHECK(outcome.has_failed);
    CHECK_THAT(outcome.message, Contains("GPU 0"));
  }
}

}  // namespace
}  // namespace bps::testing

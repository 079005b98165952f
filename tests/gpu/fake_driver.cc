// A libcuda.so.1 of virtual GPUs, so that the real programs run with --device cuda where there is no GPU: the
// driver's functions over FakeCuda, with whatever time its operations take. FAKE_GPUS says how many there
// are, 1 unless set. What breaks a rule of the driver's goes to stderr when the process ends.
//
// Only what the product and the benchmark look for.
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "bench/gpu/fake_product.h"
#include "client/src/gpu/driver/cuda_functions.h"
#include "proto/base/config/env.h"
#include "proto/base/loop/asio_loop.h"

#define DRIVER extern "C" __attribute__((visibility("default")))

namespace {

using namespace bps;
using Address = CudaFunctions::Address;

struct Driver {
  AsioLoop clock;
  FakeCuda cuda;
  bench::FakeProduct product{cuda};

  explicit Driver(FakeCuda::Options options) : cuda(clock, options) {}
};

// Never destroyed: threads may call it until the process is gone.
Driver& driver() {
  static Driver* const only = [] {
    FakeCuda::Options options;
    if (const auto gpus = env("FAKE_GPUS")) options.devices = std::atoi(gpus->c_str());
    return new Driver(options);
  }();
  return *only;
}

__attribute__((destructor)) void say_misuses() {
  for (const std::string& what : driver().cuda.misuses())
    std::fprintf(stderr, "fake driver: %s\n", what.c_str());
}

template <class T>
T* object(void* handle) {
  return static_cast<T*>(handle);
}
CudaStream stream_of(void* handle) { return static_cast<CudaStream>(handle); }
CudaEvent event_of(void* handle) { return static_cast<CudaEvent>(handle); }
void* pointer_of(Address address) { return reinterpret_cast<void*>(address); }

int result(CudaCode code) { return static_cast<int>(code); }

// For calls that make something.
template <class Handle, class Make>
int made(void** out, Make&& make) {
  Handle handle = nullptr;
  const CudaCode code = make(handle);
  *out = handle;
  return result(code);
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the driver's names
DRIVER int cuInit(unsigned) { return result(driver().cuda.init()); }
DRIVER int cuDriverGetVersion(int* version) { return result(driver().cuda.driver_version(*version)); }
DRIVER int cuDeviceGetCount(int* count) { return result(driver().cuda.device_count(*count)); }
DRIVER int cuDeviceGet(int* device, int ordinal) { return result(driver().cuda.device(*device, ordinal)); }
DRIVER int cuDeviceGetName(char* name, int bytes, int device) {
  std::string text;
  const CudaCode code = driver().cuda.device_name(text, device);
  std::snprintf(name, static_cast<std::size_t>(bytes), "%s", text.c_str());
  return result(code);
}
DRIVER int cuDeviceGetUuid_v2(void* id, int device) {
  return result(driver().cuda.device_id(*object<CudaDeviceId>(id), device));
}
DRIVER int cuDevicePrimaryCtxRetain(void** context, int device) {
  return made<CudaContext>(context, [&](auto& out) { return driver().cuda.retain_context(out, device); });
}
DRIVER int cuDevicePrimaryCtxRelease_v2(int device) { return result(driver().cuda.release_context(device)); }
DRIVER int cuCtxPushCurrent_v2(void* context) {
  return result(driver().cuda.push_context(static_cast<CudaContext>(context)));
}
DRIVER int cuCtxPopCurrent_v2(void**) { return result(driver().cuda.pop_context()); }
DRIVER int cuCtxGetDevice(int* device) { return result(driver().cuda.current_device(*device)); }
DRIVER int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return result(driver().cuda.priority_range(*least, *greatest));
}
DRIVER int cuPointerGetAttributes(unsigned count, int* attributes, void** values, Address address) {
  using namespace cuda_constants;
  CudaPointer pointer;
  const CudaCode code = driver().cuda.describe_pointer(pointer, pointer_of(address));
  for (unsigned i = 0; i < count; ++i) {
    switch (attributes[i]) {
      case kAttributeMemoryType:
        *object<unsigned>(values[i]) = pointer.is_device ? kMemoryTypeDevice : 0;
        break;
      case kAttributeDevice: *object<int>(values[i]) = pointer.device; break;
      case kAttributeRangeStart:
        *object<Address>(values[i]) = reinterpret_cast<Address>(pointer.start);
        break;
      case kAttributeRangeSize: *object<std::size_t>(values[i]) = pointer.size; break;
      case kAttributeIsLegacyIpcCapable: *object<unsigned>(values[i]) = pointer.is_whole ? 1 : 0; break;
      case kAttributePool: *object<void*>(values[i]) = nullptr; break;
      default: return result(CudaCode::invalid_value);
    }
  }
  return result(code);
}
DRIVER int cuStreamCreateWithPriority(void** stream, unsigned, int priority) {
  return made<CudaStream>(stream, [&](auto& out) { return driver().cuda.create_stream(out, priority); });
}
DRIVER int cuStreamDestroy_v2(void* stream) {
  return result(driver().cuda.destroy_stream(stream_of(stream)));
}
DRIVER int cuStreamQuery(void* stream) { return result(driver().cuda.query_stream(stream_of(stream))); }
DRIVER int cuStreamGetId(void* stream, unsigned long long* id) {
  std::uint64_t found = 0;
  const CudaCode code = driver().cuda.stream_id(found, stream_of(stream));
  *id = found;
  return result(code);
}
DRIVER int cuThreadExchangeStreamCaptureMode(int* mode) {
  auto exchanged = CudaCaptureMode(*mode);
  const CudaCode code = driver().cuda.exchange_capture_mode(exchanged);
  *mode = static_cast<int>(exchanged);
  return result(code);
}
DRIVER int cuStreamIsCapturing(void* stream, int* status) {
  bool captured = false;
  const CudaCode code = driver().cuda.is_capturing(stream_of(stream), captured);
  *status = captured ? 1 : 0;
  return result(code);
}
DRIVER int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  return result(driver().cuda.wait_event(stream_of(stream), event_of(event)));
}
// No function of NVIDIA's: what is queued from now on waits until this word is not 0.
DRIVER int fakeStreamWaitWord(void* stream, Address address) {
  auto* const word = static_cast<std::uint32_t*>(pointer_of(address));
  driver().cuda.enqueue(stream_of(stream), {.may_start = [word] {
                          return std::atomic_ref(*word).load(std::memory_order_acquire) != 0;
                        }});
  return 0;
}
// Neither: copies to devices that have not begun wait until this is called with 0.
DRIVER int fakeHoldCopiesToDevices(int holds) {
  if (holds != 0)
    driver().cuda.hold_copies(CudaCall::copy_to_device);
  else
    driver().cuda.release_copies();
  return 0;
}
DRIVER int cuEventCreate(void** event, unsigned) {
  return made<CudaEvent>(event, [&](auto& out) { return driver().cuda.create_event(out); });
}
DRIVER int cuEventRecord(void* event, void* stream) {
  return result(driver().cuda.record_event(event_of(event), stream_of(stream)));
}
DRIVER int cuEventQuery(void* event) { return result(driver().cuda.query_event(event_of(event))); }
DRIVER int cuEventDestroy_v2(void* event) { return result(driver().cuda.destroy_event(event_of(event))); }
DRIVER int cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, void* stream) {
  return result(driver().cuda.copy_to_host(to, pointer_of(from), bytes, stream_of(stream)));
}
DRIVER int cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, void* stream) {
  return result(driver().cuda.copy_to_device(pointer_of(to), from, bytes, stream_of(stream)));
}
DRIVER int cuMemAlloc_v2(Address* address, std::size_t bytes) {
  void* memory = nullptr;
  const CudaCode code = driver().cuda.allocate(memory, bytes);
  *address = reinterpret_cast<Address>(memory);
  return result(code);
}
DRIVER int cuMemFree_v2(Address address) { return result(driver().cuda.free(pointer_of(address))); }
DRIVER int cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned) {
  return result(driver().cuda.register_host(memory, bytes));
}
DRIVER int cuMemHostUnregister(void* memory) { return result(driver().cuda.unregister_host(memory)); }
DRIVER int cuGetErrorName(int code, const char** name) {
  thread_local std::string text;
  text = "FAKE_CUDA_ERROR_" + std::to_string(code);
  *name = text.c_str();
  return 0;
}
DRIVER int cuGetErrorString(int code, const char** text) {
  thread_local std::string words;
  words = driver().cuda.describe(CudaCode(code));
  *text = words.c_str();
  return 0;
}
DRIVER int cuModuleLoadData(void** module, const void* text) {
  return made<CudaModule>(
      module, [&](auto& out) { return driver().cuda.load_module(out, static_cast<const char*>(text)); });
}
DRIVER int cuModuleUnload(void* module) {
  return result(driver().cuda.unload_module(static_cast<CudaModule>(module)));
}
DRIVER int cuModuleGetFunction(void** kernel, void* module, const char* name) {
  return made<CudaKernel>(kernel, [&](auto& out) {
    return driver().cuda.find_kernel(out, static_cast<CudaModule>(module), name);
  });
}
DRIVER int cuLaunchKernel(void* kernel, unsigned blocks_x, unsigned blocks_y, unsigned, unsigned threads_x,
                          unsigned threads_y, unsigned, unsigned, void* stream, void** arguments, void**) {
  return result(driver().cuda.launch(static_cast<CudaKernel>(kernel),
                                     {blocks_x, blocks_y, threads_x, threads_y}, arguments,
                                     stream_of(stream)));
}
// NOLINTEND(readability-identifier-naming)

#include "client/src/gpu/driver/real_cuda.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <type_traits>

#include "client/src/gpu/driver/cuda_functions.h"

namespace bps {
namespace {

using namespace cuda_constants;

constexpr int kOldestDriver = 11040;  // which has all that is used but ids of streams
constexpr const char* kGetDriver =
    "install NVIDIA's driver; in a container, start it so that it sees the GPUs (--gpus all)";

CudaFunctions::Address address_of(const void* pointer) {
  return reinterpret_cast<CudaFunctions::Address>(pointer);
}

class RealCuda final : public CudaApi {
 public:
  explicit RealCuda(const CudaFunctions& functions) : driver_(functions) {}

  CudaCode init() override { return CudaCode(driver_.init(0)); }
  CudaCode driver_version(int& version) override { return CudaCode(driver_.driver_version(&version)); }
  CudaCode device_count(int& count) override { return CudaCode(driver_.device_count(&count)); }
  CudaCode device(int& device, int ordinal) override { return CudaCode(driver_.device(&device, ordinal)); }
  CudaCode device_name(std::string& name, int device) override {
    std::array<char, 256> text{};
    const auto code = CudaCode(driver_.device_name(text.data(), static_cast<int>(text.size()) - 1, device));
    name = text.data();
    return code;
  }
  CudaCode device_id(CudaDeviceId& id, int device) override {
    return CudaCode(driver_.device_id(id.data(), device));
  }
  CudaCode retain_context(CudaContext& context, int device) override {
    return made(context, [&](void** made) { return driver_.retain_context(made, device); });
  }
  CudaCode release_context(int device) override { return CudaCode(driver_.release_context(device)); }
  CudaCode push_context(CudaContext context) override { return CudaCode(driver_.push_context(context)); }
  CudaCode pop_context() override {
    void* popped = nullptr;
    return CudaCode(driver_.pop_context(&popped));
  }
  CudaCode current_device(int& device) override { return CudaCode(driver_.current_device(&device)); }
  CudaCode priority_range(int& least, int& greatest) override {
    return CudaCode(driver_.priority_range(&least, &greatest));
  }
  CudaCode describe_pointer(CudaPointer& pointer, const void* address) override {
    std::array<int, 6> wanted = {kAttributeMemoryType,         kAttributeDevice,
                                 kAttributeRangeStart,         kAttributeRangeSize,
                                 kAttributeIsLegacyIpcCapable, kAttributePool};
    unsigned int type = 0;
    int device = 0;
    CudaFunctions::Address start = 0;
    std::size_t size = 0;
    // What cuMemAlloc gives can be handed to another process by itself, what is mapped cannot, nor can a
    // pool's.
    unsigned int is_legacy = 0;
    void* pool = nullptr;
    std::array<void*, 6> values = {&type, &device, &start, &size, &is_legacy, &pool};
    const auto code = CudaCode(driver_.pointer_attributes(static_cast<unsigned int>(wanted.size()),
                                                          wanted.data(), values.data(), address_of(address)));
    pointer = {type == kMemoryTypeDevice, device, reinterpret_cast<const void*>(start), size,
               is_legacy != 0 || pool != nullptr};
    return code;
  }

  CudaCode create_stream(CudaStream& stream, int priority) override {
    return made(stream,
                [&](void** made) { return driver_.create_stream(made, kStreamNonBlocking, priority); });
  }
  CudaCode destroy_stream(CudaStream stream) override { return CudaCode(driver_.destroy_stream(stream)); }
  CudaCode query_stream(CudaStream stream) override { return CudaCode(driver_.query_stream(stream)); }
  CudaCode stream_id(std::uint64_t& id, CudaStream stream) override {
    if (driver_.stream_id == nullptr) return CudaCode::not_supported;
    unsigned long long found = 0;
    const auto code = CudaCode(driver_.stream_id(stream, &found));
    id = found;
    return code;
  }
  CudaCode exchange_capture_mode(CudaCaptureMode& mode) override {
    int number = static_cast<int>(mode);
    const auto code = CudaCode(driver_.exchange_capture_mode(&number));
    mode = CudaCaptureMode(number);
    return code;
  }
  CudaCode is_capturing(CudaStream stream, bool& captured) override {
    int status = kCaptureStatusNone;
    const auto code = CudaCode(driver_.is_capturing(stream, &status));
    captured = status != kCaptureStatusNone;
    return code;
  }
  CudaCode wait_event(CudaStream stream, CudaEvent event) override {
    return CudaCode(driver_.wait_event(stream, event, 0));
  }

  CudaCode create_event(CudaEvent& event) override {
    return made(event, [&](void** made) { return driver_.create_event(made, kEventWithoutTiming); });
  }
  CudaCode record_event(CudaEvent event, CudaStream stream) override {
    return CudaCode(driver_.record_event(event, stream));
  }
  CudaCode query_event(CudaEvent event) override { return CudaCode(driver_.query_event(event)); }
  CudaCode destroy_event(CudaEvent event) override { return CudaCode(driver_.destroy_event(event)); }

  CudaCode copy_to_host(void* to, const void* from, std::size_t bytes, CudaStream stream) override {
    return CudaCode(driver_.copy_to_host(to, address_of(from), bytes, stream));
  }
  CudaCode copy_to_device(void* to, const void* from, std::size_t bytes, CudaStream stream) override {
    return CudaCode(driver_.copy_to_device(address_of(to), from, bytes, stream));
  }

  CudaCode allocate(void*& memory, std::size_t bytes) override {
    CudaFunctions::Address address = 0;
    const auto code = CudaCode(driver_.allocate(&address, bytes));
    memory = reinterpret_cast<void*>(address);
    return code;
  }
  CudaCode free(void* memory) override { return CudaCode(driver_.free(address_of(memory))); }
  CudaCode register_host(void* memory, std::size_t bytes) override {
    return CudaCode(driver_.register_host(memory, bytes, kRegisterPortable));
  }
  CudaCode unregister_host(void* memory) override { return CudaCode(driver_.unregister_host(memory)); }

  CudaCode load_module(CudaModule& module, const char* text) override {
    return made(module, [&](void** made) { return driver_.load_module(made, text); });
  }
  CudaCode unload_module(CudaModule module) override { return CudaCode(driver_.unload_module(module)); }
  CudaCode find_kernel(CudaKernel& kernel, CudaModule module, const char* name) override {
    return made(kernel, [&](void** made) { return driver_.find_kernel(made, module, name); });
  }
  CudaCode launch(CudaKernel kernel, const CudaGrid& grid, void** arguments, CudaStream stream) override {
    return CudaCode(driver_.launch(kernel, grid.blocks_x, grid.blocks_y, 1, grid.threads_x, grid.threads_y, 1,
                                   /*shared_bytes=*/0, stream, arguments, nullptr));
  }

  std::string describe(CudaCode code) override {
    if (code == CudaCode::stub_library)
      return "this libcuda is a stub that programs are linked with (error 34)";
    const char* name = nullptr;
    const char* text = nullptr;
    const int number = static_cast<int>(code);
    if (driver_.error_name(number, &name) != 0 || driver_.error_text(number, &text) != 0 || name == nullptr)
      return fmt::format("CUDA error {}", number);
    return fmt::format("{} ({})", name, text != nullptr ? text : "");
  }

 private:
  template <class Handle, class Make>
  static CudaCode made(Handle& handle, Make&& make) {
    void* object = nullptr;
    const auto code = CudaCode(make(&object));
    handle = static_cast<Handle>(object);
    return code;
  }

  const CudaFunctions driver_;
};

// What is named _v2 has another signature, or another meaning, without it.
Result<CudaFunctions> load_cuda(const char* library) {
  void* const driver = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    const char* const why = ::dlerror();
    return make_error(ErrorCode::configuration, fmt::format("no GPU: {}", why != nullptr ? why : library),
                      kGetDriver);
  }
  CudaFunctions functions{};
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto& function, bool needed = true) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(driver, name));
    if (function == nullptr && needed && missing == nullptr) missing = name;
  };
  find("cuInit", functions.init);
  find("cuDriverGetVersion", functions.driver_version);
  find("cuDeviceGetCount", functions.device_count);
  find("cuDeviceGet", functions.device);
  find("cuDeviceGetName", functions.device_name);
  find("cuDeviceGetUuid_v2", functions.device_id);
  find("cuDevicePrimaryCtxRetain", functions.retain_context);
  find("cuDevicePrimaryCtxRelease_v2", functions.release_context);
  find("cuCtxPushCurrent_v2", functions.push_context);
  find("cuCtxPopCurrent_v2", functions.pop_context);
  find("cuCtxGetDevice", functions.current_device);
  find("cuCtxGetStreamPriorityRange", functions.priority_range);
  find("cuPointerGetAttributes", functions.pointer_attributes);
  find("cuStreamCreateWithPriority", functions.create_stream);
  find("cuStreamDestroy_v2", functions.destroy_stream);
  find("cuStreamQuery", functions.query_stream);
  find("cuStreamGetId", functions.stream_id, /*needed=*/false);
  find("cuThreadExchangeStreamCaptureMode", functions.exchange_capture_mode);
  find("cuStreamIsCapturing", functions.is_capturing);
  find("cuStreamWaitEvent", functions.wait_event);
  find("cuEventCreate", functions.create_event);
  find("cuEventRecord", functions.record_event);
  find("cuEventQuery", functions.query_event);
  find("cuEventDestroy_v2", functions.destroy_event);
  find("cuMemcpyDtoHAsync_v2", functions.copy_to_host);
  find("cuMemcpyHtoDAsync_v2", functions.copy_to_device);
  find("cuMemAlloc_v2", functions.allocate);
  find("cuMemFree_v2", functions.free);
  find("cuMemHostRegister_v2", functions.register_host);
  find("cuMemHostUnregister", functions.unregister_host);
  find("cuModuleLoadData", functions.load_module);
  find("cuModuleUnload", functions.unload_module);
  find("cuModuleGetFunction", functions.find_kernel);
  find("cuLaunchKernel", functions.launch);
  find("cuGetErrorName", functions.error_name);
  find("cuGetErrorString", functions.error_text);
  if (missing != nullptr)
    return make_error(ErrorCode::configuration,
                      fmt::format("no GPU: {} has no {}: too old, or not NVIDIA's driver", library, missing),
                      "install a newer driver");
  return functions;
}

}  // namespace

Result<std::shared_ptr<CudaApi>> open_cuda(const char* library) {
  auto functions = load_cuda(library);
  if (!functions) return std::move(functions).error();
  const auto cuda = std::make_shared<RealCuda>(*functions);
  const auto failed = [&](CudaCall call, CudaCode code) {
    return make_error(ErrorCode::configuration,
                      fmt::format("no GPU: {}: {}", name_of(call), cuda->describe(code)), kGetDriver);
  };
  int version = 0;
  if (const CudaCode code = cuda->driver_version(version); code != CudaCode::success)
    return failed(CudaCall::driver_version, code);
  if (version < kOldestDriver)
    return make_error(
        ErrorCode::configuration,
        fmt::format("no GPU: the driver is for CUDA {}.{}, and {}.{} is the least", version / 1000,
                    version % 1000 / 10, kOldestDriver / 1000, kOldestDriver % 1000 / 10),
        "install a newer driver");
  if (const CudaCode code = cuda->init(); code != CudaCode::success) return failed(CudaCall::init, code);
  int count = 0;
  if (const CudaCode code = cuda->device_count(count); code != CudaCode::success)
    return failed(CudaCall::device_count, code);
  if (count < 1) return make_error(ErrorCode::configuration, "no GPU: the driver sees none", kGetDriver);
  return std::shared_ptr<CudaApi>(cuda);
}

}  // namespace bps

// What GPU workers need of NVIDIA's driver, and no more. There are two implementations: libcuda.so.1, opened
// when the program runs (real_cuda.h), and virtual devices in memory that fail on demand
// (testing/fake_cuda.h), on which everything is tested where there is no GPU.
//
// The driver's interface and not the runtime's: it is one library that comes with the driver, so that neither
// a toolkit nor a compiler of NVIDIA's is needed to build or to run, and what is built runs without a GPU,
// too.
//
// Results are the driver's codes, because one of them is no error (not_ready) and the caller knows what the
// call was for. Calls that work in a context take the one that is current in the calling thread. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bps {

// Opaque, as the driver has them.
using CudaContext = struct CudaContextObject*;
using CudaStream = struct CudaStreamObject*;  // null: the default stream, which waits for all others
// The default stream of each thread that says so.
inline const CudaStream kCudaStreamPerThread = reinterpret_cast<CudaStream>(std::uintptr_t{2});
using CudaEvent = struct CudaEventObject*;
using CudaModule = struct CudaModuleObject*;
using CudaKernel = struct CudaKernelObject*;

// Those that somebody here acts on or that the fake makes; the driver has many more.
enum class CudaCode : std::int32_t {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  stub_library = 34,
  no_device = 100,
  invalid_device = 101,
  invalid_context = 201,
  invalid_text = 218,  // of a module
  not_found = 500,
  not_ready = 600,
  illegal_address = 700,
  already_registered = 712,
  not_registered = 713,
  misaligned_address = 716,
  launch_failed = 719,
  not_supported = 801,
  version_mismatch = 803,
  capture_unsupported = 900,
  capture_implicit = 906,
  captured_event = 907,
  unknown = 999,
};

// Whether it says that the context is gone: nothing runs in it any more, and every call says so from now on.
bool kills_context(CudaCode code);

// Every function that is called, for errors and for counts.
enum class CudaCall : std::uint8_t {
  init,
  driver_version,
  device_count,
  device,
  device_name,
  device_id,
  retain_context,
  release_context,
  push_context,
  pop_context,
  current_device,
  priority_range,
  describe_pointer,
  create_stream,
  destroy_stream,
  query_stream,
  stream_id,
  exchange_capture_mode,
  is_capturing,
  wait_event,
  create_event,
  record_event,
  query_event,
  destroy_event,
  copy_to_host,
  copy_to_device,
  allocate,
  free,
  register_host,
  unregister_host,
  load_module,
  unload_module,
  find_kernel,
  launch,
};
inline constexpr std::uint8_t kCudaCallCount = 34;

// As the driver calls it: "cuMemcpyDtoHAsync".
std::string_view name_of(CudaCall call);

// What a thread may do while a stream is captured into a graph, by it or by another: all, or not what might
// disturb the capture (to ask for an event, to register memory, ...), which then fails and ends it.
enum class CudaCaptureMode : std::int32_t { global = 0, relaxed = 2 };

// Which device it is, whatever number a process has for it; of a part of one (MIG) that of the part.
using CudaDeviceId = std::array<std::uint8_t, 16>;

// Where a pointer leads. Not `is_device`: to memory that no GPU has, whatever else it is.
struct CudaPointer {
  bool is_device = false;
  int device = 0;
  const void* start = nullptr;  // of the allocation that it lies in
  std::size_t size = 0;         // of that
  // That is one of cuMemAlloc or of a pool, of which nothing goes on where it ends. Else the program has
  // mapped it (cuMemMap): `size` is that of one mapping, or of what is reserved.
  bool is_whole = false;
};

// Blocks, and threads of each.
struct CudaGrid {
  std::uint32_t blocks_x = 1, blocks_y = 1, threads_x = 1, threads_y = 1;
};

class CudaApi {
 public:
  virtual ~CudaApi() = default;

  virtual CudaCode init() = 0;
  virtual CudaCode driver_version(int& version) = 0;  // 12040 is 12.4
  virtual CudaCode device_count(int& count) = 0;
  virtual CudaCode device(int& device, int ordinal) = 0;
  virtual CudaCode device_name(std::string& name, int device) = 0;
  virtual CudaCode device_id(CudaDeviceId& id, int device) = 0;

  // The context that the CUDA runtime, and so every framework, uses too. Released as often as it is retained.
  virtual CudaCode retain_context(CudaContext& context, int device) = 0;
  virtual CudaCode release_context(int device) = 0;
  virtual CudaCode push_context(CudaContext context) = 0;
  virtual CudaCode pop_context() = 0;
  // Of the thread's context; invalid_context if it has none.
  virtual CudaCode current_device(int& device) = 0;

  virtual CudaCode priority_range(int& least, int& greatest) = 0;  // the smaller the number, the more urgent
  virtual CudaCode describe_pointer(CudaPointer& pointer, const void* address) = 0;

  // Streams here do not wait for the default stream, nor it for them.
  virtual CudaCode create_stream(CudaStream& stream, int priority) = 0;
  virtual CudaCode destroy_stream(CudaStream stream) = 0;
  virtual CudaCode query_stream(CudaStream stream) = 0;
  // Never that of another stream, whereas handles are used again. Not of one that is being captured. Not
  // supported by drivers before CUDA 12.
  virtual CudaCode stream_id(std::uint64_t& id, CudaStream stream) = 0;
  // Of this thread: sets it, and says what it was. Needs no context.
  virtual CudaCode exchange_capture_mode(CudaCaptureMode& mode) = 0;
  // Whether what is queued on it becomes part of a graph, and is not done now.
  virtual CudaCode is_capturing(CudaStream stream, bool& captured) = 0;
  virtual CudaCode wait_event(CudaStream stream, CudaEvent event) = 0;

  virtual CudaCode create_event(CudaEvent& event) = 0;
  virtual CudaCode record_event(CudaEvent event, CudaStream stream) = 0;
  virtual CudaCode query_event(CudaEvent event) = 0;
  virtual CudaCode destroy_event(CudaEvent event) = 0;

  virtual CudaCode copy_to_host(void* to, const void* from, std::size_t bytes, CudaStream stream) = 0;
  virtual CudaCode copy_to_device(void* to, const void* from, std::size_t bytes, CudaStream stream) = 0;

  virtual CudaCode allocate(void*& memory, std::size_t bytes) = 0;
  virtual CudaCode free(void* memory) = 0;
  // For all contexts; copies to and from such memory run beside the host.
  virtual CudaCode register_host(void* memory, std::size_t bytes) = 0;
  virtual CudaCode unregister_host(void* memory) = 0;

  // Of a text in PTX, which the driver translates for its GPU.
  virtual CudaCode load_module(CudaModule& module, const char* text) = 0;
  virtual CudaCode unload_module(CudaModule module) = 0;
  virtual CudaCode find_kernel(CudaKernel& kernel, CudaModule module, const char* name) = 0;
  // `arguments`: a pointer to each; they are read now.
  virtual CudaCode launch(CudaKernel kernel, const CudaGrid& grid, void** arguments, CudaStream stream) = 0;

  // "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
  virtual std::string describe(CudaCode code) = 0;
};

}  // namespace bps

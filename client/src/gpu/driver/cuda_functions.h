// The driver's functions and constants, declared here so that no header of NVIDIA's is needed. Where those
// are found, cuda_headers.cc compares them with what is declared here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bps {

struct CudaFunctions {
  using Device = int;
  using Address = unsigned long long;  // on a device
  using Code = int;                    // an enum there

  Code (*init)(unsigned int flags);
  Code (*driver_version)(int* version);
  Code (*device_count)(int* count);
  Code (*device)(Device* device, int ordinal);
  Code (*device_name)(char* name, int bytes, Device device);
  Code (*device_id)(void* id, Device device);  // of 16 bytes
  Code (*retain_context)(void** context, Device device);
  Code (*release_context)(Device device);
  Code (*push_context)(void* context);
  Code (*pop_context)(void** context);
  Code (*current_device)(Device* device);
  Code (*priority_range)(int* least, int* greatest);
  Code (*pointer_attributes)(unsigned int count, int* attributes, void** values, Address pointer);
  Code (*create_stream)(void** stream, unsigned int flags, int priority);
  Code (*destroy_stream)(void* stream);
  Code (*exchange_capture_mode)(int* mode);         // of this thread; an enum there
  Code (*is_capturing)(void* stream, int* status);  // likewise
  Code (*query_stream)(void* stream);
  Code (*stream_id)(void* stream, unsigned long long* id);
  Code (*wait_event)(void* stream, void* event, unsigned int flags);
  Code (*create_event)(void** event, unsigned int flags);
  Code (*record_event)(void* event, void* stream);
  Code (*query_event)(void* event);
  Code (*destroy_event)(void* event);
  Code (*copy_to_host)(void* to, Address from, std::size_t bytes, void* stream);
  Code (*copy_to_device)(Address to, const void* from, std::size_t bytes, void* stream);
  Code (*allocate)(Address* memory, std::size_t bytes);
  Code (*free)(Address memory);
  Code (*register_host)(void* memory, std::size_t bytes, unsigned int flags);
  Code (*unregister_host)(void* memory);
  Code (*load_module)(void** module, const void* text);
  Code (*unload_module)(void* module);
  Code (*find_kernel)(void** kernel, void* module, const char* name);
  Code (*launch)(void* kernel, unsigned int blocks_x, unsigned int blocks_y, unsigned int blocks_z,
                 unsigned int threads_x, unsigned int threads_y, unsigned int threads_z,
                 unsigned int shared_bytes, void* stream, void** arguments, void** extra);
  Code (*error_name)(Code code, const char** name);
  Code (*error_text)(Code code, const char** text);
};

namespace cuda_constants {
inline constexpr unsigned int kStreamNonBlocking = 1;
inline constexpr unsigned int kEventWithoutTiming = 2;
inline constexpr unsigned int kRegisterPortable = 1;
inline constexpr int kAttributeMemoryType = 2;
inline constexpr int kAttributeDevice = 9;
inline constexpr int kAttributeIsLegacyIpcCapable = 10;
inline constexpr int kAttributeRangeStart = 11;
inline constexpr int kAttributeRangeSize = 12;
inline constexpr int kAttributePool = 17;
inline constexpr unsigned int kMemoryTypeDevice = 2;
inline constexpr int kCaptureModeGlobal = 0;
inline constexpr int kCaptureModeRelaxed = 2;
inline constexpr int kCaptureStatusNone = 0;
}  // namespace cuda_constants

}  // namespace bps

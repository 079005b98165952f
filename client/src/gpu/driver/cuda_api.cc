#include "client/src/gpu/driver/cuda_api.h"

#include <array>

namespace bps {
namespace {

constexpr std::array<std::string_view, kCudaCallCount> kNames = {
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuCtxGetDevice",
    "cuCtxGetStreamPriorityRange",
    "cuPointerGetAttributes",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy",
    "cuStreamQuery",
    "cuStreamGetId",
    "cuThreadExchangeStreamCaptureMode",
    "cuStreamIsCapturing",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventDestroy",
    "cuMemcpyDtoHAsync",
    "cuMemcpyHtoDAsync",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemHostRegister",
    "cuMemHostUnregister",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuLaunchKernel",
};

}  // namespace

bool kills_context(CudaCode code) {
  switch (static_cast<int>(code)) {
    case 4:    // the driver is shutting down
    case 46:   // the device is unavailable
    case 201:  // invalid context
    case 214:  // an error of memory that was not corrected
    case 220:  // likewise, of NVLink
    case 700:  // illegal address
    case 702:  // a kernel took too long
    case 709:  // the context is destroyed
    case 710:  // assertion of a kernel
    case 714:  // error of the hardware's stack
    case 715:  // illegal instruction
    case 716:  // misaligned address
    case 717:  // invalid address space
    case 718:  // invalid place in the program
    case 719:  // a kernel failed
    case 999:  // unknown
      return true;
    default: return false;
  }
}

std::string_view name_of(CudaCall call) {
  const auto index = static_cast<std::size_t>(call);
  return index < kNames.size() ? kNames[index] : "?";
}

}  // namespace bps

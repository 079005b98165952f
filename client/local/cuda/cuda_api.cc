#include "client/local/cuda/cuda_api.h"

#include <array>

namespace bps {
namespace {

constexpr std::array<std::string_view, kCudaCallCount> kNames = {
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuCtxGetStreamPriorityRange",
    "cuPointerGetAttributes",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy",
    "cuStreamQuery",
    "cuStreamWaitEvent",
    "cuStreamWaitValue32",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventDestroy",
    "cuMemcpyDtoHAsync",
    "cuMemcpyHtoDAsync",
    "cuMemcpyDtoDAsync",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemHostRegister",
    "cuMemHostUnregister",
    "cuMemHostGetDevicePointer",
};

}  // namespace

std::string_view name_of(CudaCall call) {
  const auto index = static_cast<std::size_t>(call);
  return index < kNames.size() ? kNames[index] : "?";
}

}  // namespace bps

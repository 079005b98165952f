// Compiled only where cuda.h is found: what we declared ourselves is what it says.
#include <cuda.h>

#include "client/src/gpu/driver/cuda_api.h"
#include "client/src/gpu/driver/cuda_functions.h"
#include "client/src/group/same_shape.h"

namespace bps {
namespace {

using F = CudaFunctions;

static_assert(kSameShape<decltype(F::init), decltype(&cuInit)>);
static_assert(kSameShape<decltype(F::driver_version), decltype(&cuDriverGetVersion)>);
static_assert(kSameShape<decltype(F::device_count), decltype(&cuDeviceGetCount)>);
static_assert(kSameShape<decltype(F::device), decltype(&cuDeviceGet)>);
static_assert(kSameShape<decltype(F::device_name), decltype(&cuDeviceGetName)>);
#if CUDA_VERSION >= 11040
static_assert(kSameShape<decltype(F::device_id), decltype(&cuDeviceGetUuid_v2)>);
#endif
static_assert(sizeof(CudaDeviceId) == sizeof(CUuuid));
static_assert(kSameShape<decltype(F::retain_context), decltype(&cuDevicePrimaryCtxRetain)>);
static_assert(kSameShape<decltype(F::release_context), decltype(&cuDevicePrimaryCtxRelease)>);
static_assert(kSameShape<decltype(F::push_context), decltype(&cuCtxPushCurrent)>);
static_assert(kSameShape<decltype(F::pop_context), decltype(&cuCtxPopCurrent)>);
static_assert(kSameShape<decltype(F::current_device), decltype(&cuCtxGetDevice)>);
static_assert(kSameShape<decltype(F::priority_range), decltype(&cuCtxGetStreamPriorityRange)>);
static_assert(kSameShape<decltype(F::pointer_attributes), decltype(&cuPointerGetAttributes)>);
static_assert(kSameShape<decltype(F::create_stream), decltype(&cuStreamCreateWithPriority)>);
static_assert(kSameShape<decltype(F::destroy_stream), decltype(&cuStreamDestroy)>);
static_assert(kSameShape<decltype(F::exchange_capture_mode), decltype(&cuThreadExchangeStreamCaptureMode)>);
static_assert(kSameShape<decltype(F::is_capturing), decltype(&cuStreamIsCapturing)>);
static_assert(kSameShape<decltype(F::query_stream), decltype(&cuStreamQuery)>);
#if CUDA_VERSION >= 12000
static_assert(kSameShape<decltype(F::stream_id), decltype(&cuStreamGetId)>);
#endif
static_assert(kSameShape<decltype(F::wait_event), decltype(&cuStreamWaitEvent)>);
static_assert(kSameShape<decltype(F::create_event), decltype(&cuEventCreate)>);
static_assert(kSameShape<decltype(F::record_event), decltype(&cuEventRecord)>);
static_assert(kSameShape<decltype(F::query_event), decltype(&cuEventQuery)>);
static_assert(kSameShape<decltype(F::destroy_event), decltype(&cuEventDestroy)>);
static_assert(kSameShape<decltype(F::copy_to_host), decltype(&cuMemcpyDtoHAsync)>);
static_assert(kSameShape<decltype(F::copy_to_device), decltype(&cuMemcpyHtoDAsync)>);
static_assert(kSameShape<decltype(F::allocate), decltype(&cuMemAlloc)>);
static_assert(kSameShape<decltype(F::free), decltype(&cuMemFree)>);
static_assert(kSameShape<decltype(F::register_host), decltype(&cuMemHostRegister)>);
static_assert(kSameShape<decltype(F::unregister_host), decltype(&cuMemHostUnregister)>);
static_assert(kSameShape<decltype(F::load_module), decltype(&cuModuleLoadData)>);
static_assert(kSameShape<decltype(F::unload_module), decltype(&cuModuleUnload)>);
static_assert(kSameShape<decltype(F::find_kernel), decltype(&cuModuleGetFunction)>);
static_assert(kSameShape<decltype(F::launch), decltype(&cuLaunchKernel)>);
static_assert(kSameShape<decltype(F::error_name), decltype(&cuGetErrorName)>);
static_assert(kSameShape<decltype(F::error_text), decltype(&cuGetErrorString)>);

constexpr bool is(CudaCode ours, CUresult theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}
static_assert(is(CudaCode::success, CUDA_SUCCESS));
static_assert(is(CudaCode::invalid_value, CUDA_ERROR_INVALID_VALUE));
static_assert(is(CudaCode::out_of_memory, CUDA_ERROR_OUT_OF_MEMORY));
static_assert(is(CudaCode::not_initialized, CUDA_ERROR_NOT_INITIALIZED));
static_assert(is(CudaCode::stub_library, CUDA_ERROR_STUB_LIBRARY));
static_assert(is(CudaCode::no_device, CUDA_ERROR_NO_DEVICE));
static_assert(is(CudaCode::invalid_device, CUDA_ERROR_INVALID_DEVICE));
static_assert(is(CudaCode::invalid_context, CUDA_ERROR_INVALID_CONTEXT));
static_assert(is(CudaCode::invalid_text, CUDA_ERROR_INVALID_PTX));
static_assert(is(CudaCode::not_found, CUDA_ERROR_NOT_FOUND));
static_assert(is(CudaCode::not_ready, CUDA_ERROR_NOT_READY));
static_assert(is(CudaCode::illegal_address, CUDA_ERROR_ILLEGAL_ADDRESS));
static_assert(is(CudaCode::already_registered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED));
static_assert(is(CudaCode::not_registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
static_assert(is(CudaCode::misaligned_address, CUDA_ERROR_MISALIGNED_ADDRESS));
static_assert(is(CudaCode::launch_failed, CUDA_ERROR_LAUNCH_FAILED));
static_assert(is(CudaCode::not_supported, CUDA_ERROR_NOT_SUPPORTED));
static_assert(is(CudaCode::version_mismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH));
static_assert(is(CudaCode::capture_unsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
static_assert(is(CudaCode::capture_implicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
static_assert(is(CudaCode::captured_event, CUDA_ERROR_CAPTURED_EVENT));
static_assert(is(CudaCode::unknown, CUDA_ERROR_UNKNOWN));
static_assert(CUDA_ERROR_DEINITIALIZED == 4 && CUDA_ERROR_DEVICE_UNAVAILABLE == 46 &&
              CUDA_ERROR_ECC_UNCORRECTABLE == 214 && CUDA_ERROR_NVLINK_UNCORRECTABLE == 220 &&
              CUDA_ERROR_LAUNCH_TIMEOUT == 702 && CUDA_ERROR_CONTEXT_IS_DESTROYED == 709 &&
              CUDA_ERROR_ASSERT == 710 && CUDA_ERROR_HARDWARE_STACK_ERROR == 714 &&
              CUDA_ERROR_ILLEGAL_INSTRUCTION == 715 && CUDA_ERROR_INVALID_ADDRESS_SPACE == 717 &&
              CUDA_ERROR_INVALID_PC == 718);

using namespace cuda_constants;
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kEventWithoutTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kAttributeMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(kAttributeDevice == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(kAttributeIsLegacyIpcCapable == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
static_assert(kAttributePool == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
static_assert(kAttributeRangeStart == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
static_assert(kAttributeRangeSize == CU_POINTER_ATTRIBUTE_RANGE_SIZE);
static_assert(kMemoryTypeDevice == CU_MEMORYTYPE_DEVICE);
static_assert(kCaptureModeGlobal == CU_STREAM_CAPTURE_MODE_GLOBAL);
static_assert(kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(kCaptureStatusNone == CU_STREAM_CAPTURE_STATUS_NONE);

}  // namespace
}  // namespace bps

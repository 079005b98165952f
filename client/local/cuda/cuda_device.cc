#include "client/local/cuda/cuda_device.h"

#include <fmt/format.h>

namespace bps {
namespace {

Error make_cuda_error(CudaApi& api, CudaCall call, CudaCode code, std::string_view where) {
  if (code == CudaCode::out_of_memory)
    return make_error(ErrorCode::out_of_memory,
                      fmt::format("{} on {}: {}", name_of(call), where, api.describe(code)),
                      "leave the library some hundred MiB of the GPU's memory");
  return make_error(
      ErrorCode::os, fmt::format("{} on {}: {}", name_of(call), where, api.describe(code)),
      "the program's own use of the GPU may have failed before; see the kernel's log, too (dmesg)");
}

}  // namespace

Result<std::shared_ptr<CudaDevice>> CudaDevice::open(std::shared_ptr<CudaApi> api, int ordinal) {
  int device = 0;
  const std::string where = fmt::format("GPU {}", ordinal);
  if (const CudaCode code = api->device(device, ordinal); code != CudaCode::success)
    return make_cuda_error(*api, CudaCall::device, code, where);
  std::string name;
  if (const CudaCode code = api->device_name(name, device); code != CudaCode::success)
    return make_cuda_error(*api, CudaCall::device_name, code, where);
  CudaContext context = nullptr;
  if (const CudaCode code = api->retain_context(context, device); code != CudaCode::success)
    return make_cuda_error(*api, CudaCall::retain_context, code, where);
  return std::make_shared<CudaDevice>(std::move(api), device, ordinal, context,
                                      fmt::format("{} ({})", where, name));
}

CudaDevice::CudaDevice(std::shared_ptr<CudaApi> api, int device, int ordinal, CudaContext context,
                       std::string name)
    : api_(std::move(api)), device_(device), ordinal_(ordinal), context_(context), name_(std::move(name)) {}

CudaDevice::~CudaDevice() { (void)api_->release_context(device_); }

Error CudaDevice::error(CudaCall call, CudaCode code) const {
  return make_cuda_error(*api_, call, code, name_);
}

Status CudaDevice::check(CudaCall call, CudaCode code) const {
  if (code == CudaCode::success) return {};
  return error(call, code);
}

// A call may tell of an error of work before it, so a failure is asked for again.
CudaDevice::Current::Current(const CudaDevice& device)
    : device_(device), status_([&]() -> Status {
        CudaCode code = device.api().push_context(device.context_);
        if (code != CudaCode::success) code = device.api().push_context(device.context_);
        return device.check(CudaCall::push_context, code);
      }()) {}

CudaDevice::Current::~Current() {
  if (status_.ok()) (void)device_.api().pop_context();
}

}  // namespace bps

#include "client/src/gpu/driver/cuda_device.h"

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

// A call may tell of an error of work before it, so a failure is asked for again.
template <class Call>
CudaCode twice(Call&& call) {
  const CudaCode code = call();
  return code == CudaCode::success ? code : call();
}

// `mode` as it was, if it fails.
CudaCode exchange(CudaApi& api, CudaCaptureMode& mode) {
  CudaCaptureMode exchanged = mode;
  const CudaCode code = api.exchange_capture_mode(exchanged);
  if (code == CudaCode::success) mode = exchanged;
  return code;
}

}  // namespace

Error not_at_rest(const std::string& gpu, const std::string& why) {
  return make_error(
      ErrorCode::os,
      fmt::format("{} has not come to rest: {}; so it may still read and write the memory that it "
                  "was given",
                  gpu, why),
      "leave that memory alone until the process has ended");
}

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

// The last to release it would wait for what is left on it.
CudaDevice::~CudaDevice() {
  if (!is_left_behind()) (void)api_->release_context(device_);
}

Error CudaDevice::error(CudaCall call, CudaCode code) const {
  return make_cuda_error(*api_, call, code, name_);
}

Status CudaDevice::check(CudaCall call, CudaCode code) const {
  if (code == CudaCode::success) return {};
  return error(call, code);
}

Status CudaDevice::check_not_captured(CudaStream stream) const {
  bool captured = false;
  const CudaCode code = api_->is_capturing(stream, captured);
  // The default stream, while a stream that waits for it is captured.
  captured = captured || code == CudaCode::capture_implicit;
  if (!captured) return check(CudaCall::is_capturing, code);
  return make_error(ErrorCode::invalid_argument,
                    "the stream is being captured into a CUDA graph, of which communication can be no part",
                    "begin operations, and wait for them, outside of the capture");
}

CudaDevice::Current::Current(const CudaDevice& device)
    : device_(device), status_([&]() -> Status {
        CudaApi& api = device.api();
        CudaCode code = twice([&] { return api.push_context(device.context_); });
        if (code != CudaCode::success) return device.error(CudaCall::push_context, code);
        code = twice([&] { return exchange(api, mode_); });
        if (code == CudaCode::success) return {};
        (void)api.pop_context();
        return device.error(CudaCall::exchange_capture_mode, code);
      }()) {}

CudaDevice::Current::~Current() {
  if (!status_.ok()) return;
  (void)twice([&] { return exchange(device_.api(), mode_); });
  (void)device_.api().pop_context();
}

}  // namespace bps

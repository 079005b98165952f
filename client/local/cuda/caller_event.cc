#include "client/local/cuda/caller_event.h"

namespace bps {
namespace {

const void* owner_of(CudaStream stream) {
  thread_local const char here = 0;
  return stream == kCudaStreamPerThread ? &here : nullptr;
}

}  // namespace

CallerEvent::~CallerEvent() {
  pool->free_.update([&](std::vector<CudaEvent>& free) { free.push_back(event); });
}

CallerEvents::~CallerEvents() {
  if (device_->is_left_behind()) return;
  const CudaDevice::Current current(*device_);
  free_.update([&](std::vector<CudaEvent>& free) {
    for (CudaEvent event : free)
      (void)device_->api().destroy_event(event);
  });
}

Result<std::shared_ptr<CallerEvent>> CallerEvents::record(CudaStream stream) {
  const CudaDevice::Current current(*device_);
  if (!current.status().ok()) return current.status().error();
  if (const Status status = device_->check_not_captured(stream); !status.ok()) return status.error();
  CudaEvent event = free_.update([](std::vector<CudaEvent>& free) {
    if (free.empty()) return CudaEvent();
    const CudaEvent last = free.back();
    free.pop_back();
    return last;
  });
  if (event == nullptr) {
    if (const CudaCode code = device_->api().create_event(event); code != CudaCode::success)
      return device_->error(CudaCall::create_event, code);
  }
  auto made = std::make_shared<CallerEvent>(shared_from_this(), event, stream, owner_of(stream));
  if (const CudaCode code = device_->api().record_event(event, stream); code != CudaCode::success)
    return device_->error(CudaCall::record_event, code);
  made->number = ++recorded_;
  return made;
}

}  // namespace bps

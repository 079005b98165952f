#include "client/src/gpu/caller_event.h"

namespace bps {
namespace {

// Not its place in memory, which the next thread may have.
std::uint64_t this_thread() {
  static std::atomic<std::uint64_t> threads = 0;
  thread_local const std::uint64_t number = ++threads;
  return number;
}

}  // namespace

CallerEvent::~CallerEvent() {
  if (event == nullptr) return;
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

// A driver of before CUDA 12 has no ids.
Result<CallerEvent::Stream> CallerEvents::tell_apart(CudaStream stream) const {
  CallerEvent::Stream told;
  const CudaCode code = device_->api().stream_id(told.id, stream);
  if (code == CudaCode::success) return told;
  if (code != CudaCode::not_supported) return device_->error(CudaCall::stream_id, code);
  told.id = reinterpret_cast<std::uintptr_t>(stream);
  if (stream == kCudaStreamPerThread) told.thread = this_thread();
  return told;
}

Result<std::shared_ptr<CallerEvent>> CallerEvents::record(CudaStream stream) {
  const CudaDevice::Current current(*device_);
  if (!current.status().ok()) return current.status().error();
  if (const Status status = device_->check_not_captured(stream); !status.ok()) return status.error();
  const auto told = tell_apart(stream);
  if (!told) return told.error();
  auto made = std::make_shared<CallerEvent>(shared_from_this(), *told);
  made->event = free_.update([](std::vector<CudaEvent>& free) {
    if (free.empty()) return CudaEvent();
    const CudaEvent last = free.back();
    free.pop_back();
    return last;
  });
  if (made->event == nullptr) {
    free_.update([&](std::vector<CudaEvent>& free) { free.reserve(++events_); });
    if (const CudaCode code = device_->api().create_event(made->event); code != CudaCode::success)
      return device_->error(CudaCall::create_event, code);
  }
  if (const CudaCode code = device_->api().record_event(made->event, stream); code != CudaCode::success)
    return device_->error(CudaCall::record_event, code);
  made->number = ++recorded_;
  return made;
}

}  // namespace bps

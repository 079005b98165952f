#include "client/src/gpu/driver/caller_event.h"

namespace bps {
namespace {

// Not its place in memory, which the next thread may have.
std::uint64_t this_thread() {
  static std::atomic<std::uint64_t> threads = 0;
  thread_local const std::uint64_t number = ++threads;
  return number;
}

}  // namespace

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
  auto event = events_->take();
  if (!event) return event.error();
  if (const CudaCode code = device_->api().record_event(event->get(), stream); code != CudaCode::success)
    return device_->error(CudaCall::record_event, code);
  auto made = std::make_shared<CallerEvent>();
  made->event = std::move(event).value();
  made->stream = *told;
  made->number = ++recorded_;
  return made;
}

}  // namespace bps

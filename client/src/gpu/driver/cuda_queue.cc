#include "client/src/gpu/driver/cuda_queue.h"

#include <utility>

namespace bps {

CudaEventPool::~CudaEventPool() {
  if (device_->is_left_behind()) return;
  const CudaDevice::Current current(*device_);
  destroy();
}

Result<CudaEventPool::Event> CudaEventPool::take() {
  CudaEvent event = free_.update_quietly([](std::vector<CudaEvent>& free) {
    if (free.empty()) return CudaEvent();
    const CudaEvent last = free.back();
    free.pop_back();
    return last;
  });
  if (event == nullptr) {
    free_.update_quietly([&](std::vector<CudaEvent>& free) { free.reserve(++made_); });
    if (const CudaCode code = device_->api().create_event(event); code != CudaCode::success)
      return device_->error(CudaCall::create_event, code);
  }
  return Event(event, [pool = shared_from_this()](CudaEvent given_back) {
    pool->free_.update_quietly([&](std::vector<CudaEvent>& free) { free.push_back(given_back); });
  });
}

void CudaEventPool::destroy() {
  const auto free = free_.update_quietly([](std::vector<CudaEvent>& all) { return std::exchange(all, {}); });
  for (CudaEvent event : free)
    (void)device_->api().destroy_event(event);
}

Status CudaQueue::open(int priority) {
  return device_.check(CudaCall::create_stream, device_.api().create_stream(stream_, priority));
}

Result<CudaEventPool::Event> CudaQueue::mark(std::function<void()> then) {
  auto event = events_.take();
  if (!event) return event;
  if (const CudaCode code = device_.api().record_event(event->get(), stream_); code != CudaCode::success)
    return device_.error(CudaCall::record_event, code);
  marks_.push_back({*event, std::move(then)});
  return event;
}

Status CudaQueue::wait(const CudaEventPool::Event& event) {
  return device_.check(CudaCall::wait_event, device_.api().wait_event(stream_, event.get()));
}

Status CudaQueue::poll() {
  while (!marks_.empty()) {
    const CudaCode code = device_.api().query_event(marks_.front().event.get());
    if (code == CudaCode::not_ready) break;
    if (code != CudaCode::success) return device_.error(CudaCall::query_event, code);
    const Mark mark = std::move(marks_.front());
    marks_.pop_front();
    ++reached_;
    mark.then();
  }
  return {};
}

CudaCode CudaQueue::query() const {
  return stream_ == nullptr ? CudaCode::success : device_.api().query_stream(stream_);
}

void CudaQueue::close() {
  marks_.clear();
  if (stream_ != nullptr) (void)device_.api().destroy_stream(std::exchange(stream_, nullptr));
}

}  // namespace bps

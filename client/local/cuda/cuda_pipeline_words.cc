// What the pipeline does for streams of the program that wait for operations, and what it must not do
// meanwhile.
#include <fmt/format.h>

#include "client/local/cuda/cuda_pipeline.h"

namespace bps {

Status CudaPipeline::make_words() {
  auto words = StreamWords::create(device_, [weak = weak_from_this()] {
    // The loop is there as long as this.
    if (const auto self = weak.lock()) self->loop_.post([self] { self->turn(); });
  });
  if (!words) return words.error();
  words_ = std::move(words).value();
  return {};
}

Status CudaPipeline::poll_trial() {
  if (!trial_) {
    auto next = words_->take_trial();
    if (!next) return {};
    trial_.emplace(words_, std::move(*next), *device_,
                   StreamTrial::Ours{collectives_, to_host_, to_device_, nccl_ ? &*nccl_ : nullptr,
                                     static_cast<int>(options_.self), ring_memory_ + ring_.bytes()},
                   options_.trial_timeout);
  }
  const auto over = trial_->poll(loop_.now());
  if (!over) return over.error();
  if (*over) trial_.reset();
  return {};
}

// Copies wait for nothing but the copies before them, and what comes from NCCL for that. If they stand still
// while streams wait, they stand behind one: one that waits for a stream that waits, and has not been tried.
Status CudaPipeline::check_stall() {
  const std::uint32_t waiting = words_->waiting();
  const auto is_stalled = [&](Stall& stall, const CudaQueue& queue, bool may_wait) {
    const bool stands = waiting > 0 && !may_wait && queue.is_waiting() && stall.was_waiting &&
                        queue.reached() == stall.reached;
    if (!stands) stall = {queue.is_waiting(), queue.reached(), loop_.now()};
    return loop_.now() - stall.since >= options_.stall_timeout;
  };
  const bool to_host = is_stalled(to_host_stall_, to_host_.queue(), collectives_.is_waiting());
  const bool to_device = is_stalled(to_device_stall_, to_device_.queue(), false);
  if (!to_host && !to_device) return {};
  return make_error(
      ErrorCode::os,
      fmt::format("copies {} {} have not moved for {} s while {} streams of the program wait for operations: "
                  "they may be behind one of these, or behind one that waits for these, in a hardware queue",
                  to_host ? "from" : "to", device_->name(),
                  std::chrono::duration_cast<std::chrono::seconds>(options_.stall_timeout).count(), waiting),
      "wait for operations on the host, or give the program more hardware queues "
      "(CUDA_DEVICE_MAX_CONNECTIONS=32)");
}

// Registering memory, and the end of that, may wait for all streams: also for one that waits for an
// operation, which needs this thread. So it is done when none does, and none begins to meanwhile.
Status CudaPipeline::work_on_memory() {
  if (!memory_->has_work()) return {};
  if (words_ != nullptr && !words_->shut()) return {};
  options_.lease->enter("cuMemHostRegister or cuMemHostUnregister");
  const Status status = memory_->work();
  options_.lease->leave();
  if (words_ != nullptr) words_->reopen();
  return status;
}

bool CudaPipeline::look_at_memory() {
  if (life_ == Life::finished) return false;
  turn();
  return true;
}

}  // namespace bps

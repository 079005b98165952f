// What the pipeline does for streams of the program that wait for operations, and what it must not do
// meanwhile.
#include <fmt/format.h>

#include "client/src/gpu/cuda_pipeline.h"

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
  options_.lease->enter("the trial of a stream");
  const auto found = trial_->poll(loop_.now());
  options_.lease->leave();
  if (!found) return found.error();
  if (!*found) return {};
  if (**found == StreamWords::Verdict::harmless)
    options_.log.info("{}: stream {} of the program waits for operations by itself, and the host goes on",
                      device_->name(), trial_->stream());
  if (**found == StreamWords::Verdict::harmful)
    options_.log.info(
        "{}: stream {} of the program would hold up the library's copies while it waits for operations, so "
        "the host "
        "waits in its place; more hardware queues may help (CUDA_DEVICE_MAX_CONNECTIONS=32)",
        device_->name(), trial_->stream());
  // A few times in vain are no more than a busy moment.
  constexpr std::uint32_t kSaid = 3;
  if (**found == StreamWords::Verdict::unknown && trial_->trials() == kSaid)
    options_.log.info(
        "{}: whether stream {} of the program would hold up the library's copies while it waits for "
        "operations could "
        "not be found out {} times, because those did not come to rest within {:.3g} s; the host waits in "
        "its place, "
        "and it is tried again more and more seldom",
        device_->name(), trial_->stream(), kSaid,
        std::chrono::duration<double>(options_.trial_timeout).count());
  trial_.reset();
  return {};
}

// Copies wait for nothing but the copies before them, and what comes from NCCL for that. If they stand still
// while streams wait, they stand behind one: one that waits for a stream that waits, and has not been tried.
// A call of NCCL's is in progress until it has come to its stream, which waits for no other member's GPU
// unless it is the first of its kind; those have been made before (nccl_warm_up.h), as far as they are known.
Status CudaPipeline::check_stall() {
  const std::uint32_t waiting = words_->waiting();
  const auto is_stalled = [&](Stall& stall, bool is_waiting, std::uint64_t reached) {
    const bool stands = waiting > 0 && is_waiting && stall.was_waiting && reached == stall.reached;
    if (!stands) stall = {is_waiting, reached, loop_.now()};
    return loop_.now() - stall.since >= options_.stall_timeout;
  };
  const auto is_copier_stalled = [&](Stall& stall, const CudaQueue& queue, bool may_wait) {
    return is_stalled(stall, queue.is_waiting() && !may_wait, queue.reached());
  };
  const bool to_host = is_copier_stalled(to_host_stall_, to_host_.queue(), collectives_.is_waiting());
  const bool to_device = is_copier_stalled(to_device_stall_, to_device_.queue(), false);
  const bool nccl = nccl_ && is_stalled(nccl_stall_, nccl_->is_busy(), nccl_->begun());
  if (!to_host && !to_device && !nccl) return {};
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options_.stall_timeout).count();
  if (nccl)
    return make_error(
        ErrorCode::os,
        fmt::format(
            "a call of NCCL on {} has been in progress for {} s while {} streams of the program wait for "
            "operations: it may wait for these, or for a call of the program's that does",
            device_->name(), seconds, waiting),
        "wait for operations on the host, or have NCCL make its connections early (NCCL_RUNTIME_CONNECT=0)");
  return make_error(
      ErrorCode::os,
      fmt::format("copies {} {} have not moved for {} s while {} streams of the program wait for operations: "
                  "they may be behind one of these, or behind one that waits for these, in a hardware queue",
                  to_host ? "from" : "to", device_->name(), seconds, waiting),
      "wait for operations on the host, or give the program more hardware queues "
      "(CUDA_DEVICE_MAX_CONNECTIONS=32)");
}

// Registering memory, and the end of that, may wait for all streams: also for one that waits for an
// operation, which needs this thread. So it is done when none does, and none begins to meanwhile. And what
// has been dropped by then may still be written to by a GPU that has not come to rest.
Status CudaPipeline::work_on_memory() {
  if (!memory_->has_work() || life_ == Life::broken || is_finishing_) return {};
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

// How a pipeline ends: because something failed, and in order.
#include <utility>

#include "client/local/cuda/cuda_pipeline.h"

namespace bps {

void CudaPipeline::abort(const Error& error) {
  fail(error, /*is_report=*/false);
  turn();
}

void CudaPipeline::fail(const Error& error, bool is_report) {
  if (error_) return;
  error_ = error;
  const bool was_open = life_ != Life::fresh;
  life_ = was_open ? Life::broken : Life::drained;
  // Also where a stream that waits is what holds ours up: then they go on now.
  trial_.reset();
  if (words_ != nullptr) words_->release();
  const WorkPtr blamed = works_.empty() ? (open_.empty() ? nullptr : open_.begin()->second) : works_.front();
  if (is_report && !is_finishing_ && !begun_)
    reports_->on_broken(error, blamed != nullptr ? std::optional(blamed->collective.tensor) : std::nullopt);
  {
    // The other members may wait on their devices for ours: they end by themselves, or are told by their
    // owners.
    const CudaDevice::Current current(*device_);
    if (nccl_) nccl_->abort();
  }
  if (begun_) std::exchange(begun_, {})(error);
  for (auto& [stream, waiting] : std::exchange(callers_, {}))
    for (Caller& caller : waiting)
      caller.then(error);
  for (const WorkPtr& work : std::exchange(works_, {})) {
    if (work->next > 0 || work->step != Work::Step::wait) continue;
    open_.erase(work->collective.number);
    reports_->on_ended(work->collective.number, error);
  }
  if (!was_open) end_all();
}

void CudaPipeline::drain() {
  if (!is_idle()) return;
  end_all();
}

// Some errors of a query say that the context is lost, and nothing runs in it any more. Asked again, because
// a wrong answer would give memory away that is in use; and any other error says nothing of what runs.
bool CudaPipeline::is_idle() {
  bool all = true;
  bool bad = false;
  for (const CudaQueue* queue :
       {&std::as_const(collectives_), &std::as_const(to_host_.queue()), &std::as_const(to_device_.queue())}) {
    const CudaCode code = queue->query();
    bad = bad || kills_context(code);
    all = all && code == CudaCode::success;
  }
  bad_queries_ = bad ? bad_queries_ + 1 : 0;
  return all || bad_queries_ >= kLostAfter;
}

void CudaPipeline::end_all() {
  life_ = Life::drained;
  collectives_.drop();
  to_host_.drop();
  to_device_.drop();
  for (auto& [number, thens] : std::exchange(staged_, {}))
    for (Then& then : thens)
      then(*error_);
  for (const auto& [number, work] : std::exchange(open_, {}))
    reports_->on_ended(number, *error_);
}

void CudaPipeline::finish() {
  is_finishing_ = true;
  finish_by_ = loop_.now() + options_.finish_timeout;
  turn();
}

void CudaPipeline::go_on_finishing() {
  trial_.reset();
  if (words_ != nullptr) words_->release();
  if (life_ == Life::running || life_ == Life::beginning) {
    if (nccl_ && nccl_->is_open() && life_ == Life::running) {
      const auto ready = nccl_->poll();
      if (ready && !*ready && loop_.now() < finish_by_) return;
      if (ready && *ready && nccl_->finalize().ok()) {
        life_ = Life::finalizing;
        return;
      }
    }
    if (nccl_) nccl_->abort();
    life_ = Life::drained;
  }
  if (life_ == Life::finalizing) {
    const auto ready = nccl_->poll();
    if (ready && !*ready && loop_.now() < finish_by_) return;
    if (ready && *ready) nccl_->destroy();
    nccl_->abort();
    life_ = Life::drained;
  }
  if (life_ == Life::drained && is_idle()) close();
  if (life_ == Life::fresh) life_ = Life::finished;
}

void CudaPipeline::close() {
  to_host_.close();
  to_device_.close();
  collectives_.close();
  if (ring_memory_ != nullptr) (void)device_->api().free(std::exchange(ring_memory_, nullptr));
  words_.reset();
  events_.destroy();
  life_ = Life::finished;
}

}  // namespace bps

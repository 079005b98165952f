// How a pipeline ends: because something failed, and in order.
#include <algorithm>
#include <utility>

#include "client/src/gpu/cuda_pipeline.h"

namespace bps {

void CudaPipeline::abort(const Error& error) {
  const auto within = in_driver();
  fail(error, /*is_report=*/false);
  turn();
}

void CudaPipeline::fail(const Error& error, bool is_report) {
  if (error_) return;
  error_ = error;
  const bool was_open = life_ != Life::fresh;
  life_ = was_open ? Life::broken : Life::drained;
  if (is_report && !is_finishing_ && !begun_) {
    CudaNews::Item news{.kind = CudaNews::Item::Kind::broken, .error = error};
    const auto blamed =
        batches_.empty() ? open_.begin() : std::find(open_.begin(), open_.end(), batches_.front());
    if (blamed != open_.end()) {
      const std::vector<Item>& items = (*blamed)->items;
      const auto item = std::find_if(items.begin(), items.end(), [](const Item& i) { return !i.is_over; });
      if (item != items.end()) news.tensor = item->collective.tensor;
    }
    reports_->add(std::move(news));
  }
  if (begun_) tell(std::exchange(begun_, {}), error);
  for (auto& [key, waiting] : std::exchange(callers_, {}))
    for (CudaOrders::Caller& caller : waiting)
      tell(std::move(caller.then), error);
  end_what_has_not_begun();
  if (!was_open) end_all();
  reports_->flush();
  abort_nccl();
}

void CudaPipeline::end_what_has_not_begun() {
  for (const BatchPtr& batch : std::exchange(batches_, {})) {
    if (batch->next > 0 || batch->step != Batch::Step::wait) continue;
    for (Item& item : batch->items)
      settle(*batch, item, error_);
  }
}

// The other members may wait on their devices for ours: they end by themselves, or are told by their owners.
void CudaPipeline::abort_nccl() {
  if (!nccl_ || !nccl_->is_open()) return;
  const CudaDevice::Current current(*device_);
  options_.lease->enter_nccl("ncclCommAbort");
  nccl_->abort();
  options_.lease->leave();
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
    for (CudaThen& then : thens)
      tell(std::move(then), error_);
  for (const BatchPtr& batch : std::exchange(open_, {}))
    for (Item& item : batch->items)
      settle(*batch, item, error_);
}

void CudaPipeline::finish() {
  is_finishing_ = true;
  finish_by_ = loop_.now() + options_.finish_timeout;
  turn();
}

void CudaPipeline::go_on_finishing() {
  if (life_ == Life::running || life_ == Life::beginning) {
    if (nccl_ && nccl_->is_open() && life_ == Life::running) {
      const auto ready = nccl_->poll();
      if (ready && !*ready && loop_.now() < finish_by_) return;
      options_.lease->enter_nccl("ncclCommFinalize");
      const bool is_begun = ready && *ready && nccl_->finalize().ok();
      options_.lease->leave();
      if (is_begun) {
        life_ = Life::finalizing;
        return;
      }
    }
    abort_nccl();
    life_ = Life::drained;
  }
  if (life_ == Life::finalizing) {
    const auto ready = nccl_->poll();
    if (ready && !*ready && loop_.now() < finish_by_) return;
    options_.lease->enter_nccl("ncclCommDestroy");
    if (ready && *ready) nccl_->destroy();
    options_.lease->leave();
    abort_nccl();
    life_ = Life::drained;
  }
  if (life_ == Life::drained && is_idle()) close();
  if (life_ == Life::fresh) life_ = Life::finished;
  if (life_ != Life::finished) return;
  while (memory_->has_work())
    (void)memory_->work();
}

void CudaPipeline::close() {
  options_.lease->enter("the driver's freeing of streams and memory");
  to_host_.close();
  to_device_.close();
  collectives_.close();
  if (ring_memory_ != nullptr) (void)device_->api().free(std::exchange(ring_memory_, nullptr));
  events_->destroy();
  options_.lease->leave();
  life_ = Life::finished;
}

}  // namespace bps

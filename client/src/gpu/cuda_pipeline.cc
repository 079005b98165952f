#include "client/src/gpu/cuda_pipeline.h"

#include <algorithm>
#include <utility>

namespace bps {

CudaPipeline::CudaPipeline(EventLoop& loop, std::shared_ptr<CudaDevice> device, std::shared_ptr<NcclApi> nccl,
                           std::shared_ptr<PinnedMemory> memory, Options options,
                           std::unique_ptr<CudaReports> reports)
    : loop_(loop),
      device_(std::move(device)),
      memory_(std::move(memory)),
      options_(std::move(options)),
      reports_(std::move(reports)),
      events_(std::make_shared<CudaEventPool>(device_)),
      collectives_(*device_, *events_),
      to_host_(*device_, *events_, CudaCopier::Direction::to_host),
      to_device_(*device_, *events_, CudaCopier::Direction::to_device),
      // So that some portions are under way while others are copied out.
      batches_({options_.size, options_.self, options_.ring_bytes / 4},
               options_.size > 1 ? options_.ring_bytes : 0,
               {*device_, *memory_, nccl_, collectives_, to_host_, to_device_, *options_.lease, options_.nvtx,
                *reports_}),
      staging_(options_.size == 1, *memory_, to_device_, options_.nvtx, *reports_) {
  if (nccl == nullptr) return;
  nccl_.emplace(std::move(nccl), *device_);
  join_.emplace(*nccl_, collectives_, *options_.lease);
}

// The loop has ended before finish() was done, or there was none.
CudaPipeline::~CudaPipeline() {
  if (life_ == Life::fresh || life_ == Life::finished) return;
  const CudaDevice::Current current(*device_);
  abort_nccl();
  // What the device still works on is left to the end of the process: to free it would be to wait.
  bool idle = false;
  for (std::uint32_t asked = 0; asked < kLostAfter && !idle; ++asked)
    idle = is_idle();
  if (idle) {
    close();
  } else {
    device_->leave_behind();
  }
}

void CudaPipeline::begin(const std::optional<NcclId>& id, CudaThen done) {
  if (error_) {
    reports_->tell(std::move(done), error_);
    return reports_->flush();
  }
  const auto within = in_driver();
  begun_ = std::move(done);
  if (join_ && id) join_->begin(*id);
  life_ = Life::beginning;
  const CudaDevice::Current current(*device_);
  Status status = current.status();
  if (status.ok()) status = open();
  if (!status.ok()) fail(status.error());
  turn();
}

Status CudaPipeline::open() {
  int least = 0;
  int greatest = 0;
  CudaApi& api = device_->api();
  if (const CudaCode code = api.priority_range(least, greatest); code != CudaCode::success)
    return device_->error(CudaCall::priority_range, code);
  // What the network waits for goes before the program's own work.
  if (const Status status = collectives_.open(greatest); !status.ok()) return status;
  if (const Status status = to_host_.open(greatest); !status.ok()) return status;
  if (const Status status = to_device_.open(greatest); !status.ok()) return status;
  return batches_.open();
}

void CudaPipeline::take(CudaOrders& orders) {
  for (CudaOrders::Caller& caller : orders.callers) {
    if (error_) {
      reports_->tell(std::move(caller.then), error_);
      continue;
    }
    add(std::move(caller));
  }
  staging_.add(orders.staged, error_);
  batches_.add(orders, error_);
  orders.clear();
  turn();
}

// In the order of their stream, in which they do not come: of an output one hears when its input is ready.
void CudaPipeline::add(CudaOrders::Caller caller) {
  auto& waiting = callers_[caller.event->stream];
  const auto before = std::find_if(waiting.rbegin(), waiting.rend(), [&](const CudaOrders::Caller& other) {
    return other.event->number < caller.event->number;
  });
  waiting.insert(before.base(), std::move(caller));
}

void CudaPipeline::turn() {
  const auto within = in_driver();
  const CudaDevice::Current current(*device_);
  if (!current.status().ok()) {
    fail(current.status().error());
    // Without a context nothing can be asked or freed: it may come back, or is lost for good.
    if (++bad_contexts_ < kLostAfter) {
      reports_->flush();
      return arm();
    }
  } else {
    bad_contexts_ = 0;
  }
  if (life_ == Life::running || life_ == Life::beginning) {
    if (const Status status = go_on(); !status.ok()) fail(status.error());
  }
  if (life_ == Life::broken) drain();
  if (const Status status = work_on_memory(); !status.ok()) fail(status.error());
  if (is_finishing_) go_on_finishing();
  show_nccl();
  reports_->flush();
  arm();
}

// NCCL tells nobody when it waits for ever: the client's loop sees whether this changes.
void CudaPipeline::show_nccl() const {
  if (!nccl_) return;
  CudaLease::Progress now{nullptr, nccl_->begun() + collectives_.reached()};
  if (life_ == Life::beginning) {
    now.name = join_->is_made() ? "its first collectives" : name_of(NcclCall::init_rank).data();
  } else if (life_ == Life::running && nccl_->is_busy()) {
    now.name = name_of(nccl_->last()).data();
  } else if (life_ == Life::running && collectives_.is_waiting()) {
    now.name = "collectives";
  }
  options_.lease->show_nccl(now);
}

Status CudaPipeline::go_on() {
  if (life_ == Life::beginning) {
    if (join_) {
      const auto ring = batches_.ring();
      const auto joined = join_->poll({options_.size, options_.self, ring.data(), ring.size()});
      if (!joined) return joined.error();
      if (!*joined) return {};
    }
    life_ = Life::running;
    reports_->tell(std::exchange(begun_, {}));
  }
  if (const Status status = poll_callers(); !status.ok()) return status;
  if (const Status status = collectives_.poll(); !status.ok()) return status;
  if (const Status status = to_host_.poll(); !status.ok()) return status;
  if (const Status status = to_device_.poll(); !status.ok()) return status;
  if (const Status status = batches_.begin(); !status.ok()) return status;
  // While ours waits for other members' GPUs, NCCL may have something to say.
  if (nccl_ && (collectives_.is_waiting() || nccl_->is_busy())) {
    if (const auto asked = nccl_->poll(); !asked) return asked.error();
  }
  return to_host_.pump();
}

// Of each of the program's streams only the first event can be the next.
Status CudaPipeline::poll_callers() {
  for (auto at = callers_.begin(); at != callers_.end();) {
    auto& waiting = at->second;
    while (!waiting.empty()) {
      const CudaCode code = device_->api().query_event(waiting.front().event->event.get());
      if (code == CudaCode::not_ready) break;
      if (code != CudaCode::success) return device_->error(CudaCall::query_event, code);
      reports_->tell(std::move(waiting.front().then));
      waiting.pop_front();
    }
    at = waiting.empty() ? callers_.erase(at) : std::next(at);
  }
  return {};
}

// What has been dropped may still be written to by a GPU that has not come to rest.
Status CudaPipeline::work_on_memory() {
  if (!memory_->has_work() || life_ == Life::broken || is_finishing_) return {};
  options_.lease->enter("cuMemHostRegister or cuMemHostUnregister");
  const Status status = memory_->work();
  options_.lease->leave();
  return status;
}

bool CudaPipeline::look_at_memory() {
  if (life_ == Life::finished) return false;
  turn();
  return true;
}

bool CudaPipeline::is_active() const {
  // What has not come to rest long after the end does not; the destructor sees to it.
  if (is_finishing_) return life_ != Life::finished && loop_.now() < finish_by_ + options_.finish_timeout;
  if (memory_->has_work()) return true;
  if (life_ == Life::fresh || life_ == Life::drained || life_ == Life::finished) return false;
  return life_ != Life::running || is_working() || !callers_.empty();
}

bool CudaPipeline::is_working() const {
  return collectives_.is_waiting() || to_host_.is_busy() || to_device_.is_busy() || batches_.has_unbegun();
}

void CudaPipeline::arm() {
  if (!is_active()) return;
  const bool is_urgent = life_ == Life::running && !is_finishing_ && is_working();
  const Duration interval = is_urgent ? options_.poll_interval : options_.caller_interval;
  const TimePoint at = loop_.now() + interval;
  if (armed_for_ && *armed_for_ <= at) return;
  armed_for_ = at;
  loop_.after(interval, [self = shared_from_this(), at] {
    if (self->armed_for_ != at) return;  // an earlier one has been armed since
    self->armed_for_.reset();
    self->turn();
  });
}

// ---- how it ends: because something failed, and in order ----

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
    news.tensor = batches_.first_tensor();
    reports_->add(std::move(news));
  }
  if (begun_) reports_->tell(std::exchange(begun_, {}), error);
  for (auto& [key, waiting] : std::exchange(callers_, {}))
    for (CudaOrders::Caller& caller : waiting)
      reports_->tell(std::move(caller.then), error);
  batches_.end_unbegun(error);
  if (!was_open) end_all();
  reports_->flush();
  abort_nccl();
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
  staging_.end_all(error_);
  batches_.end_all(error_);
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
  batches_.close();
  events_->destroy();
  options_.lease->leave();
  life_ = Life::finished;
}

}  // namespace bps

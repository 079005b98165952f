#include "client/src/gpu/cuda_pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace bps {
namespace {

std::string partitions(PartitionId first, PartitionId last) {
  return first == last ? fmt::format("partition {}", first.value)
                       : fmt::format("partitions {} to {}", first.value, last.value);
}

}  // namespace

CudaPipeline::CudaPipeline(EventLoop& loop, std::shared_ptr<CudaDevice> device, std::shared_ptr<NcclApi> nccl,
                           std::shared_ptr<PinnedMemory> memory, Options options,
                           std::unique_ptr<Reports> reports)
    : loop_(loop),
      device_(std::move(device)),
      memory_(std::move(memory)),
      options_(std::move(options)),
      // So that some portions are under way while others are copied out.
      place_{options_.size, options_.self, options_.ring_bytes / 4},
      reports_(std::move(reports)),
      events_(std::make_shared<CudaEventPool>(device_)),
      collectives_(*device_, *events_),
      to_host_(*device_, *events_, CudaCopier::Direction::to_host),
      to_device_(*device_, *events_, CudaCopier::Direction::to_device),
      ring_(options_.size > 1 ? options_.ring_bytes : 0) {
  if (nccl != nullptr) nccl_.emplace(std::move(nccl), *device_);
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
    tell(std::move(done), error_);
    return reports_->flush();
  }
  const auto within = in_driver();
  begun_ = std::move(done);
  id_ = id;
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
  if (ring_.bytes() == 0) return {};
  void* memory = nullptr;
  if (const CudaCode code = api.allocate(memory, ring_.bytes()); code != CudaCode::success)
    return device_->error(CudaCall::allocate, code);
  ring_memory_ = static_cast<std::byte*>(memory);
  return {};
}

void CudaPipeline::tell(CudaThen then, const std::optional<Error>& error) {
  reports_->add({.kind = CudaNews::Item::Kind::told, .then = std::move(then), .error = error});
}

void CudaPipeline::take(CudaOrders& orders) {
  for (CudaOrders::Caller& caller : orders.callers) {
    if (error_) {
      tell(std::move(caller.then), error_);
      continue;
    }
    add(std::move(caller));
  }
  stage(orders.staged);
  add_batches(orders);
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

// The pieces of each work lie behind those of the work before.
void CudaPipeline::add_batches(CudaOrders& orders) {
  std::size_t first = 0;
  for (auto work = orders.works.begin(); work != orders.works.end();) {
    const auto end =
        std::next(std::find_if(work, orders.works.end(), [](const auto& w) { return w.ends_batch; }));
    auto batch = std::make_shared<Batch>();
    batch->items.reserve(static_cast<std::size_t>(end - work));
    const std::size_t from = first;
    for (; work != end; ++work) {
      batch->items.push_back({.is_spread = work->is_spread,
                              .collective = work->collective,
                              .first = first - from,
                              .count = work->pieces,
                              .label = std::move(work->label)});
      first += work->pieces;
    }
    batch->pieces.assign(orders.pieces.begin() + static_cast<std::ptrdiff_t>(from),
                         orders.pieces.begin() + static_cast<std::ptrdiff_t>(first));
    add(std::move(batch));
  }
}

void CudaPipeline::add(BatchPtr batch) {
  CollectivePlan plan(place_);
  for (const Item& item : batch->items)
    plan.add(item.is_spread, item.collective, std::span(batch->pieces).subspan(item.first, item.count));
  batch->portions = plan.take();
  batch->parts.resize(batch->pieces.size());
  batch->open = batch->items.size();
  open_.push_back(batch);
  if (error_) {
    for (Item& item : batch->items)
      settle(*batch, item, error_);
    return;
  }
  for (const CollectivePortion& portion : batch->portions) {
    const auto wait_for = [](Item& item) { ++item.left; };
    for_items(*batch, portion.steps, wait_for);
    for_items(*batch, portion.steps, [](Item& item) { ++item.unbegun; });
    for_items(*batch, portion.outputs, wait_for);
    for (const CollectiveOutput& output : portion.outputs)
      ++batch->parts[output.piece];
  }
  batches_.push_back(std::move(batch));
}

// What is adjacent becomes one copy.
void CudaPipeline::stage(std::vector<CudaOrders::Staged>& answers) {
  std::stable_sort(answers.begin(), answers.end(), [](const auto& a, const auto& b) {
    return a.piece.priority != b.piece.priority ? a.piece.priority > b.piece.priority
                                                : a.piece.partition < b.piece.partition;
  });
  for (auto first = answers.begin(); first != answers.end();) {
    const auto end = std::find_if(first, answers.end(), [&](const auto& other) {
      return other.piece.priority != first->piece.priority;
    });
    stage(std::span(first, end));
    first = end;
  }
}

void CudaPipeline::stage(std::span<CudaOrders::Staged> answers) {
  std::string label;
  if (options_.nvtx.is_on())
    label = partitions(answers.front().piece.partition, answers.back().piece.partition);
  CudaCopier::Job job;
  job.priority = answers.front().piece.priority;
  std::vector<CudaThen> thens;
  thens.reserve(answers.size());
  std::vector<LocalPiece> watched;
  for (CudaOrders::Staged& answer : answers) {
    const LocalPiece& piece = answer.piece;
    thens.push_back(std::move(answer.then));
    if (piece.out == nullptr) continue;  // the spread brings it
    append(job.copies,
           copy_of(piece, piece.out, piece.answer, 0, bytes_of(piece), memory_->holds(piece.home)));
    // With other ranks it is for the spread to say, which comes last.
    if (options_.size == 1 && piece.watch != nullptr) watched.push_back(piece);
  }
  if (error_) {
    for (CudaThen& then : thens)
      tell(std::move(then), error_);
    return;
  }
  const std::uint64_t number = next_staged_++;
  staged_[number] = std::move(thens);
  const auto shown = std::make_shared<Nvtx::Range>(range("stage", label));
  job.then = [this, number, shown] {
    auto ended = staged_.extract(number);
    for (CudaThen& then : ended.mapped())
      tell(std::move(then));
  };
  if (!watched.empty()) {
    job.queued = [watched = std::move(watched)](const CudaEventPool::Event& event) {
      for (const LocalPiece& piece : watched)
        piece.watch->on_queued(bytes_of(piece), event);
    };
  }
  to_device_.add(std::move(job));
}

Result<bool> CudaPipeline::is_joined() {
  if (!nccl_) return true;
  if (!nccl_->is_open()) {
    options_.lease->enter_nccl("ncclCommInitRankConfig");
    const Status status = nccl_->init(options_.size, *id_, options_.self);
    options_.lease->leave();
    if (!status.ok()) return status.error();
  }
  if (!warm_up_) {
    const auto ready = nccl_->poll();
    if (!ready || !*ready) return ready;
    warm_up_.emplace(NcclWarmUp::Place{options_.size, options_.self, ring_memory_, ring_.bytes()});
  }
  return is_warm();
}

// It is over when the stream has come to the end of it: then the other members' calls have been made, too,
// and what they needed of this one.
Result<bool> CudaPipeline::is_warm() {
  if (warm_ == Warm::no) {
    options_.lease->enter_nccl("the first use of NCCL");
    const auto begun = warm_up_->poll(*nccl_, collectives_.stream());
    options_.lease->leave();
    if (!begun || !*begun) return begun;
    const auto marked = collectives_.mark([this] { warm_ = Warm::yes; });
    if (!marked) return marked.error();
    warm_ = Warm::marked;
  }
  if (const Status status = collectives_.poll(); !status.ok()) return status.error();
  if (const auto asked = nccl_->poll(); !asked) return asked.error();
  return warm_ == Warm::yes;
}

Nvtx::Range CudaPipeline::range(const char* stage, const std::string& label) const {
  if (!options_.nvtx.is_on()) return {};
  return Nvtx::Range(options_.nvtx, fmt::format("bps {} {}", stage, label));
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
    now.name = warm_up_ ? "its first collectives" : name_of(NcclCall::init_rank).data();
  } else if (life_ == Life::running && nccl_->is_busy()) {
    now.name = name_of(nccl_->last()).data();
  } else if (life_ == Life::running && collectives_.is_waiting()) {
    now.name = "collectives";
  }
  options_.lease->show_nccl(now);
}

Status CudaPipeline::go_on() {
  if (life_ == Life::beginning) {
    const auto joined = is_joined();
    if (!joined) return joined.error();
    if (!*joined) return {};
    life_ = Life::running;
    tell(std::exchange(begun_, {}));
  }
  if (const Status status = poll_callers(); !status.ok()) return status;
  if (const Status status = collectives_.poll(); !status.ok()) return status;
  if (const Status status = to_host_.poll(); !status.ok()) return status;
  if (const Status status = to_device_.poll(); !status.ok()) return status;
  if (const Status status = begin_batches(); !status.ok()) return status;
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
      tell(std::move(waiting.front().then));
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
  return collectives_.is_waiting() || to_host_.is_busy() || to_device_.is_busy() || !batches_.empty();
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

}  // namespace bps

#include "client/local/cuda/cuda_pipeline.h"

#include <fmt/format.h>

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
      options_(options),
      // So that some portions are under way while others are copied out.
      place_{options.size, options.self, options.ring_bytes / 4},
      reports_(std::move(reports)),
      events_(*device_),
      collectives_(*device_, events_),
      to_host_(*device_, events_, CudaCopier::Direction::to_host),
      to_device_(*device_, events_, CudaCopier::Direction::to_device),
      ring_(options.size > 1 ? options.ring_bytes : 0) {
  if (nccl != nullptr) nccl_.emplace(std::move(nccl), *device_);
}

// The loop has ended before finish() was done, or there was none.
CudaPipeline::~CudaPipeline() {
  if (life_ == Life::fresh || life_ == Life::finished) return;
  trial_.reset();
  if (words_ != nullptr) words_->release();
  const CudaDevice::Current current(*device_);
  if (nccl_) nccl_->abort();
  // What the device still works on is left to the end of the process: to free it would be to wait.
  bool idle = false;
  for (std::uint32_t asked = 0; asked < kLostAfter && !idle; ++asked)
    idle = is_idle();
  if (idle) close();
}

void CudaPipeline::begin(const std::optional<NcclId>& id, Then done) {
  if (error_) return done(*error_);
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
  // What streams are tried out with lies behind the ring; alone, there is no ring.
  void* memory = nullptr;
  const std::size_t bytes = ring_.bytes() + StreamTrial::kBytes;
  if (const CudaCode code = api.allocate(memory, bytes); code != CudaCode::success)
    return device_->error(CudaCall::allocate, code);
  ring_memory_ = static_cast<std::byte*>(memory);
  return make_words();
}

void CudaPipeline::run(bool is_spread, const Collective& collective, std::vector<LocalPiece> pieces,
                       std::string label) {
  if (error_) return reports_->on_ended(collective.number, *error_);
  auto work = std::make_shared<Work>();
  work->is_spread = is_spread;
  work->label = std::move(label);
  work->collective = collective;
  work->portions =
      is_spread ? plan_spread(place_, collective, pieces) : plan_reduce(place_, collective, pieces);
  work->parts.resize(pieces.size());
  if (!is_spread) {
    for (const CollectivePortion& portion : work->portions)
      for (const CollectiveOutput& output : portion.outputs)
        ++work->parts[output.piece];
  }
  work->pieces = std::move(pieces);
  open_.emplace(collective.number, work);
  works_.push_back(std::move(work));
  turn();
}

void CudaPipeline::stage(std::vector<Staged> answers) {
  if (error_) {
    for (Staged& answer : answers)
      answer.then(*error_);
    return;
  }
  std::string label;
  if (options_.nvtx.is_on())
    label = partitions(answers.front().piece.partition, answers.back().piece.partition);
  CudaCopier::Job job;
  std::vector<Then> thens;
  for (Staged& answer : answers) {
    const LocalPiece& piece = answer.piece;
    thens.push_back(std::move(answer.then));
    if (piece.out == nullptr) continue;  // the spread brings it
    append(job.copies, {piece.out, const_cast<std::byte*>(piece.answer), bytes_of(piece), piece.home,
                        memory_->holds(piece.home)});
    job.priority = piece.priority;
  }
  const std::uint64_t number = next_staged_++;
  staged_[number] = std::move(thens);
  const auto shown = std::make_shared<Nvtx::Range>(range("stage", label));
  job.then = [this, number, shown] {
    const auto ended = staged_.extract(number);
    for (const Then& then : ended.mapped())
      then({});
  };
  to_device_.add(std::move(job));
  turn();
}

void CudaPipeline::when_fired(std::shared_ptr<CallerEvent> event, Then then) {
  if (error_) return then(*error_);
  const CudaStream stream = event->stream;
  callers_[stream].push_back({std::move(event), std::move(then)});
  turn();
}

Result<bool> CudaPipeline::is_joined() {
  if (!nccl_) return true;
  if (!nccl_->is_open()) {
    if (const Status status = nccl_->init(options_.size, *id_, options_.self); !status.ok())
      return status.error();
  }
  return nccl_->poll();
}

Nvtx::Range CudaPipeline::range(const char* stage, const std::string& label) const {
  if (!options_.nvtx.is_on()) return {};
  return Nvtx::Range(options_.nvtx, fmt::format("bps {} {}", stage, label));
}

void CudaPipeline::turn() {
  const CudaDevice::Current current(*device_);
  if (!current.status().ok()) {
    fail(current.status().error());
    // Without a context nothing can be asked or freed: it may come back, or is lost for good.
    if (++bad_contexts_ < kLostAfter) return arm();
  } else {
    bad_contexts_ = 0;
  }
  if (life_ == Life::running || life_ == Life::beginning) {
    if (const Status status = go_on(); !status.ok()) fail(status.error());
  }
  if (life_ == Life::broken) drain();
  if (is_finishing_) go_on_finishing();
  arm();
}

Status CudaPipeline::go_on() {
  if (life_ == Life::beginning) {
    const auto joined = is_joined();
    if (!joined) return joined.error();
    if (!*joined) return {};
    life_ = Life::running;
    std::exchange(begun_, {})(Status());
  }
  if (const Status status = poll_callers(); !status.ok()) return status;
  if (const Status status = collectives_.poll(); !status.ok()) return status;
  if (const Status status = to_host_.poll(); !status.ok()) return status;
  if (const Status status = to_device_.poll(); !status.ok()) return status;
  if (const Status status = begin_works(); !status.ok()) return status;
  if (const Status status = poll_trial(); !status.ok()) return status;
  if (const Status status = check_stall(); !status.ok()) return status;
  // While ours waits for other members' GPUs, NCCL may have something to say.
  if (collectives_.is_waiting() && nccl_) {
    if (const auto asked = nccl_->poll(); !asked) return asked.error();
  }
  return to_host_.pump();
}

// Of each of the program's streams only the first event can be the next.
Status CudaPipeline::poll_callers() {
  for (auto at = callers_.begin(); at != callers_.end();) {
    auto& waiting = at->second;
    while (!waiting.empty()) {
      const CudaCode code = device_->api().query_event(waiting.front().event->event);
      if (code == CudaCode::not_ready) break;
      if (code != CudaCode::success) return device_->error(CudaCall::query_event, code);
      const Caller caller = std::move(waiting.front());
      waiting.pop_front();
      caller.then({});
    }
    at = waiting.empty() ? callers_.erase(at) : std::next(at);
  }
  return {};
}

Status CudaPipeline::begin_works() {
  while (!works_.empty()) {
    const WorkPtr work = works_.front();
    if (work->next < work->portions.size()) {
      const auto begun = begin_portion(work);
      if (!begun) return begun.error();
      if (!*begun) break;
      continue;
    }
    works_.pop_front();
    work->is_begun = true;
    for (std::size_t i = 0; !work->is_spread && i < work->pieces.size(); ++i) {
      // Of a broadcast from another host there is nothing to bring.
      if (work->portions.empty() && work->pieces[i].owner == options_.self)
        reports_->on_summed(work->collective.number, i);
    }
    settle(work);
  }
  return {};
}

bool CudaPipeline::is_active() const {
  // What has not come to rest long after the end does not; the destructor sees to it.
  if (is_finishing_) return life_ != Life::finished && loop_.now() < finish_by_ + options_.finish_timeout;
  if (life_ == Life::fresh || life_ == Life::drained || life_ == Life::finished) return false;
  return life_ != Life::running || is_working() || !callers_.empty() || trial_;
}

bool CudaPipeline::is_working() const {
  return collectives_.is_waiting() || to_host_.is_busy() || to_device_.is_busy() || !works_.empty() ||
         (trial_ && trial_->is_held());
}

void CudaPipeline::arm() {
  if (!is_active()) return;
  const bool is_idle = life_ == Life::running && !is_finishing_ && !is_working();
  const Duration interval = is_idle ? options_.caller_interval : options_.poll_interval;
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

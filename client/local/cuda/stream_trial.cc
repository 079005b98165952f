#include "client/local/cuda/stream_trial.h"

#include <array>
#include <utility>

namespace bps {

StreamTrial::StreamTrial(std::shared_ptr<StreamWords> words, StreamWords::Trial trial,
                         const CudaDevice& device, const Ours& ours, Duration timeout)
    : words_(std::move(words)), trial_(std::move(trial)), device_(device), ours_(ours), timeout_(timeout) {}

StreamTrial::~StreamTrial() { end(StreamWords::Verdict::unknown); }

void StreamTrial::end(StreamWords::Verdict verdict) {
  if (const auto trial = std::exchange(trial_, std::nullopt)) words_->tried(*trial, verdict);
}

Result<bool> StreamTrial::is_there() {
  const CudaCode code = device_.api().query_event(trial_->arrived);
  if (code == CudaCode::not_ready) return false;
  if (code != CudaCode::success) return device_.error(CudaCall::query_event, code);
  return true;
}

Status StreamTrial::begin(TimePoint now) {
  were_idle_ = true;
  for (const CudaQueue* queue : {&std::as_const(ours_.collectives), &std::as_const(ours_.to_host.queue()),
                                 &std::as_const(ours_.to_device.queue())})
    were_idle_ = were_idle_ && queue->query() == CudaCode::success;
  until_ = now + timeout_;
  blocks_ = std::make_shared<Blocks>();
  blocks_->left = ours_.nccl != nullptr ? 3 : 2;
  const auto copy = [&](CudaCopier& copier, std::byte* device, std::byte* host) {
    CudaCopier::Job job;
    job.copies = {{device, host, kBlock}};
    job.priority = INT32_MAX;
    job.then = [blocks = blocks_] { --blocks->left; };
    copier.add(std::move(job));
    return copier.pump();
  };
  if (const Status status = copy(ours_.to_host, ours_.device, blocks_->to); !status.ok()) return status;
  return copy(ours_.to_device, ours_.device + kBlock, blocks_->from);
}

// As every call of NCCL: begun when it takes calls, and on its stream when it takes calls again.
Status StreamTrial::talk_to_self() {
  if (ours_.nccl == nullptr || talk_ == Talk::marked) return {};
  const auto ready = ours_.nccl->poll();
  if (!ready) return ready.error();
  if (!*ready) return {};
  if (talk_ == Talk::waiting) {
    talk_ = Talk::begun;
    std::byte* const at = ours_.device + 2 * kBlock;
    const std::array<NcclStep, 2> steps = {
        NcclStep{.call = NcclCall::send, .in = at, .count = kBlock, .type = NcclType::u8, .peer = ours_.self},
        NcclStep{.call = NcclCall::receive,
                 .out = at + kBlock,
                 .count = kBlock,
                 .type = NcclType::u8,
                 .peer = ours_.self}};
    return ours_.nccl->begin(steps, ours_.collectives.stream());
  }
  talk_ = Talk::marked;
  const auto marked = ours_.collectives.mark([blocks = blocks_] { --blocks->left; });
  return marked ? Status() : Status(marked.error());
}

Result<bool> StreamTrial::poll(TimePoint now) {
  if (!is_held()) {
    const auto there = is_there();
    if (!there || !*there) return there;
    if (const Status status = begin(now); !status.ok()) return status.error();
  }
  if (const Status status = talk_to_self(); !status.ok()) return status.error();
  if (blocks_->left > 0 && now < until_) return false;
  // Also if the call in progress has been begun and its place not been marked: what is begun next waits for
  // it.
  end(blocks_->left == 0 ? StreamWords::Verdict::harmless
      : were_idle_       ? StreamWords::Verdict::harmful
                         : StreamWords::Verdict::unknown);
  return true;
}

}  // namespace bps

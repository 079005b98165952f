#include "client/src/gpu/stream_trial.h"

#include <array>
#include <utility>

namespace bps {

StreamTrial::StreamTrial(std::shared_ptr<StreamWords> words, StreamWords::Trial trial,
                         const CudaDevice& device, const Ours& ours, Duration timeout)
    : words_(std::move(words)), trial_(std::move(trial)), device_(device), ours_(ours), timeout_(timeout) {}

StreamTrial::~StreamTrial() { end(StreamWords::Verdict::unknown); }

void StreamTrial::end(StreamWords::Verdict verdict) {
  if (const auto trial = std::exchange(trial_, std::nullopt)) trials_ = words_->tried(*trial, verdict);
}

Result<bool> StreamTrial::is_there() {
  const CudaCode code = device_.api().query_event(trial_->arrived);
  if (code == CudaCode::not_ready) return false;
  if (code != CudaCode::success) return device_.error(CudaCall::query_event, code);
  return true;
}

// What has work to do says nothing: it may be that work which takes its time.
Result<bool> StreamTrial::are_ours_at_rest() {
  if (ours_.nccl != nullptr) {
    const auto ready = ours_.nccl->poll();
    if (!ready || !*ready) return ready;
  }
  for (const CudaQueue* queue : {&std::as_const(ours_.collectives), &std::as_const(ours_.to_host.queue()),
                                 &std::as_const(ours_.to_device.queue())}) {
    const CudaCode code = queue->query();
    if (code == CudaCode::not_ready) return false;
    if (code != CudaCode::success) return device_.error(CudaCall::query_stream, code);
  }
  return true;
}

Status StreamTrial::begin() {
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

Result<std::optional<StreamWords::Verdict>> StreamTrial::poll(TimePoint now) {
  using Verdict = StreamWords::Verdict;
  const auto over = [&](Verdict verdict) {
    end(verdict);
    return std::optional(verdict);
  };
  if (!is_held()) {
    const auto there = is_there();
    if (!there) return there.error();
    if (!*there) return std::optional<Verdict>();
    until_ = now + timeout_;
  }
  if (blocks_ == nullptr) {
    const auto at_rest = are_ours_at_rest();
    if (!at_rest) return at_rest.error();
    if (!*at_rest && now < *until_) return std::optional<Verdict>();
    if (!*at_rest) return over(Verdict::unknown);
    until_ = now + timeout_;
    if (const Status status = begin(); !status.ok()) return status.error();
  }
  if (const Status status = talk_to_self(); !status.ok()) return status.error();
  if (blocks_->left > 0 && now < *until_) return std::optional<Verdict>();
  // Also if the call in progress has been begun and its place not been marked: what is begun next waits for
  // it.
  return over(blocks_->left == 0 ? Verdict::harmless : Verdict::harmful);
}

}  // namespace bps

// How the portions of a collective begin, and what follows from them.
#include <utility>

#include "client/local/cuda/cuda_pipeline.h"

namespace bps {
namespace {

NcclType type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return NcclType::f32;
    case DType::f64: return NcclType::f64;
    case DType::f16: return NcclType::f16;
    case DType::bf16: return NcclType::bf16;
    case DType::i8: return NcclType::i8;
    case DType::u8: return NcclType::u8;
    case DType::i32: return NcclType::i32;
    case DType::i64: return NcclType::i64;
  }
  return NcclType::f32;
}

NcclOperation operation_of(Operation operation) {
  switch (operation) {
    case Operation::min: return NcclOperation::min;
    case Operation::max: return NcclOperation::max;
    case Operation::product: return NcclOperation::product;
    case Operation::sum:
    case Operation::average:
    case Operation::broadcast: return NcclOperation::sum;
  }
  return NcclOperation::sum;
}

NcclCall call_of(CollectiveStep::Kind kind) {
  switch (kind) {
    case CollectiveStep::Kind::reduce_scatter: return NcclCall::reduce_scatter;
    case CollectiveStep::Kind::reduce: return NcclCall::reduce;
    case CollectiveStep::Kind::all_gather: return NcclCall::all_gather;
    case CollectiveStep::Kind::broadcast: return NcclCall::broadcast;
    case CollectiveStep::Kind::send: return NcclCall::send;
    case CollectiveStep::Kind::receive: return NcclCall::receive;
  }
  return NcclCall::reduce;
}

}  // namespace

Result<bool> CudaPipeline::begin_portion(const WorkPtr& work) {
  const CollectivePortion& portion = work->portions[work->next];
  if (work->step == Work::Step::wait) {
    if (work->next == 0) work->range = range(work->is_spread ? "spread" : "reduce", work->label);
    // Of a spread only where this member does not want what it hands on.
    const bool needs_ring =
        portion.ring_bytes > 0 && (!work->is_spread || work->pieces.front().out == nullptr);
    if (needs_ring) {
      work->ring = ring_.take(portion.ring_bytes);
      if (!work->ring) return false;
    }
    work->step = Work::Step::load;
    if (work->is_spread && needs_ring) return load(work, portion);
  }
  if (work->step == Work::Step::load) {
    if (work->pending > 0 && work->is_spread && work->ring) return false;  // see load()
    if (!portion.steps.empty()) {
      const auto ready = nccl_->poll();
      if (!ready || !*ready) return ready;
      if (const Status status = nccl_->begin(steps_of(*work, portion), collectives_.stream()); !status.ok())
        return status.error();
    }
    work->step = Work::Step::launch;
  }
  // What is in progress has perhaps not come to the stream yet, and an event would be before it.
  if (!portion.steps.empty()) {
    const auto ready = nccl_->poll();
    if (!ready || !*ready) return ready;
  }
  if (const Status status = launched(work, portion); !status.ok()) return status.error();
  work->step = Work::Step::wait;
  ++work->next;
  return true;
}

// The root of a broadcast hands on what it owns of the answer, and wants none of it: it goes by way of the
// ring. The portions before must have ended, so that `pending` is 0 when it is there; broadcasts of a root
// are rare.
Result<bool> CudaPipeline::load(const WorkPtr& work, const CollectivePortion& portion) {
  CudaCopier::Job job;
  for (const CollectiveOutput& output : portion.outputs) {
    const LocalPiece& piece = work->pieces[output.piece];
    if (piece.owner != options_.self) continue;
    append(job.copies,
           {ring_memory_ + *work->ring + output.at, const_cast<std::byte*>(piece.answer) + output.offset,
            output.bytes, piece.home, memory_->holds(piece.home)});
  }
  job.priority = INT32_MAX;
  ++work->pending;
  job.then = [work] { --work->pending; };
  to_device_.add(std::move(job));
  if (const Status status = to_device_.pump(); !status.ok()) return status.error();
  return false;
}

std::vector<NcclStep> CudaPipeline::steps_of(const Work& work, const CollectivePortion& portion) const {
  std::vector<NcclStep> steps;
  std::size_t next_output = 0;
  for (const CollectiveStep& step : portion.steps) {
    const LocalPiece& piece = work.pieces[step.piece];
    NcclStep call{.call = call_of(step.kind),
                  .count = step.elements,
                  .type = type_of(piece.dtype),
                  .operation = operation_of(work.collective.operation),
                  .peer = static_cast<int>(step.peer)};
    const auto next_in_ring = [&]() -> std::byte* {
      while (portion.outputs[next_output].is_input)
        ++next_output;
      return ring_memory_ + *work.ring + portion.outputs[next_output++].at;
    };
    switch (step.kind) {
      case CollectiveStep::Kind::reduce_scatter:
        call.in = piece.in;
        call.out = next_in_ring();
        break;
      case CollectiveStep::Kind::reduce:
        call.in = piece.in + step.offset;
        call.out = step.peer == options_.self ? next_in_ring() : nullptr;
        break;
      case CollectiveStep::Kind::all_gather:
        call.in = work.pieces[step.piece + options_.self].out;
        call.out = piece.out;
        break;
      case CollectiveStep::Kind::broadcast: {
        std::byte* const place = piece.out != nullptr ? piece.out + step.offset : next_in_ring();
        call.in = place;
        call.out = place;
        break;
      }
      case CollectiveStep::Kind::send: call.in = piece.in + step.offset; break;
      case CollectiveStep::Kind::receive: call.out = next_in_ring(); break;
    }
    steps.push_back(call);
  }
  return steps;
}

Status CudaPipeline::launched(const WorkPtr& work, const CollectivePortion& portion) {
  const std::optional<std::size_t> ring = std::exchange(work->ring, std::nullopt);
  CudaEventPool::Event after;
  if (!portion.steps.empty()) {
    ++work->pending;
    const auto marked = collectives_.mark([this, work, ring] {
      if (work->is_spread && ring) ring_.give_back(*ring);
      --work->pending;
      settle(work);
    });
    if (!marked) return marked.error();
    after = *marked;
  }
  if (!work->is_spread && !portion.outputs.empty()) copy_out(work, portion, ring, after);
  return {};
}

void CudaPipeline::copy_out(const WorkPtr& work, const CollectivePortion& portion,
                            std::optional<std::size_t> ring, const CudaEventPool::Event& after) {
  CudaCopier::Job job;
  job.after = after;
  job.priority = work->pieces.front().priority;
  for (const CollectiveOutput& output : portion.outputs) {
    const LocalPiece& piece = work->pieces[output.piece];
    auto* const from =
        output.is_input ? const_cast<std::byte*>(piece.in) + output.offset : ring_memory_ + *ring + output.at;
    append(job.copies,
           {from, piece.sum + output.offset, output.bytes, piece.home, memory_->holds(piece.home)});
  }
  ++work->pending;
  const auto shown = std::make_shared<Nvtx::Range>(range("copy to host", work->label));
  job.then = [this, work, ring, &portion, shown] {
    if (ring) ring_.give_back(*ring);
    for (const CollectiveOutput& output : portion.outputs)
      bring(*work, output);
    --work->pending;
    settle(work);
  };
  to_host_.add(std::move(job));
}

void CudaPipeline::bring(Work& work, const CollectiveOutput& output) {
  if (--work.parts[output.piece] == 0) reports_->on_summed(work.collective.number, output.piece);
}

void CudaPipeline::settle(const WorkPtr& work) {
  if (!work->is_begun || work->pending > 0) return;
  work->range = {};
  open_.erase(work->collective.number);
  reports_->on_ended(work->collective.number, {});
}

}  // namespace bps

// How the portions of a batch begin, and what follows from them.
#include <algorithm>
#include <utility>

#include "client/src/gpu/cuda_pipeline.h"

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

Status CudaPipeline::begin_batches() {
  while (!batches_.empty()) {
    const BatchPtr batch = batches_.front();
    if (!batch->is_begun) begin(batch);
    if (batch->next == batch->portions.size()) {
      batches_.pop_front();
      continue;
    }
    const auto begun = begin_portion(batch);
    if (!begun) return begun.error();
    if (!*begun) break;
  }
  return {};
}

void CudaPipeline::begin(const BatchPtr& batch) {
  batch->is_begun = true;
  for (Item& item : batch->items) {
    if (item.left > 0) item.range = range(item.is_spread ? "spread" : "reduce", item.label);
    for (std::size_t i = 0; !item.is_spread && i < item.count; ++i) {
      // Of a broadcast from another host there is nothing to bring.
      if (batch->pieces[item.first + i].owner == options_.self && batch->parts[item.first + i] == 0)
        reports_->add({.kind = CudaNews::Item::Kind::summed, .number = item.collective.number, .index = i});
    }
    if (item.left == 0) settle(*batch, item);
  }
}

Result<bool> CudaPipeline::begin_portion(const BatchPtr& batch) {
  const CollectivePortion& portion = batch->portions[batch->next];
  if (batch->step == Batch::Step::wait) {
    if (portion.ring_bytes > 0) {
      batch->ring = ring_.take(portion.ring_bytes);
      if (!batch->ring) return false;
    }
    batch->step = Batch::Step::load;
    if (const Status status = load(batch, portion); !status.ok()) return status.error();
  }
  if (batch->step == Batch::Step::load) {
    if (batch->is_loading) return false;
    if (!portion.steps.empty()) {
      const auto ready = nccl_->poll();
      if (!ready || !*ready) return ready;
      options_.lease->enter_nccl("a collective of NCCL");
      const Status status = nccl_->begin(steps_of(*batch, portion), collectives_.stream());
      options_.lease->leave();
      if (!status.ok()) return status.error();
    }
    batch->step = Batch::Step::launch;
  }
  // What is in progress has perhaps not come to the stream yet, and an event would be before it.
  if (!portion.steps.empty()) {
    const auto ready = nccl_->poll();
    if (!ready || !*ready) return ready;
  }
  if (const Status status = launched(batch, portion); !status.ok()) return status.error();
  batch->step = Batch::Step::wait;
  ++batch->next;
  return true;
}

// The root of a broadcast hands on what it owns of the answer, and wants none of it: it goes by way of the
// ring, and NCCL is not begun before it is there.
Status CudaPipeline::load(const BatchPtr& batch, const CollectivePortion& portion) {
  CudaCopier::Job job;
  for (const CollectiveOutput& output : portion.outputs) {
    if (!batch->items[output.item].is_spread) continue;
    const LocalPiece& piece = batch->pieces[output.piece];
    append(job.copies, copy_of(piece, ring_memory_ + *batch->ring + output.at, piece.answer, output.offset,
                               output.bytes, memory_->holds(piece.home)));
  }
  if (job.copies.empty()) return {};
  job.priority = INT32_MAX;
  batch->is_loading = true;
  job.then = [batch] { batch->is_loading = false; };
  to_device_.add(std::move(job));
  return to_device_.pump();
}

std::vector<NcclStep> CudaPipeline::steps_of(const Batch& batch, const CollectivePortion& portion) const {
  std::vector<NcclStep> steps;
  steps.reserve(portion.steps.size());
  for (const CollectiveStep& step : portion.steps) {
    const LocalPiece& piece = batch.pieces[step.piece];
    std::byte* const in_ring = step.at ? ring_memory_ + *batch.ring + *step.at : nullptr;
    NcclStep call{.call = call_of(step.kind),
                  .out = in_ring,
                  .count = step.elements,
                  .type = type_of(piece.dtype),
                  .operation = operation_of(batch.items[step.item].collective.operation),
                  .peer = static_cast<int>(step.peer)};
    switch (step.kind) {
      case CollectiveStep::Kind::reduce_scatter:
      case CollectiveStep::Kind::reduce:
      case CollectiveStep::Kind::send: call.in = piece.in + step.offset; break;
      case CollectiveStep::Kind::receive: break;
      case CollectiveStep::Kind::all_gather:
        call.in = batch.pieces[step.piece + options_.self].out;
        call.out = piece.out;
        break;
      case CollectiveStep::Kind::broadcast:
        if (in_ring == nullptr) call.out = piece.out + step.offset;
        call.in = call.out;
        break;
    }
    steps.push_back(call);
  }
  return steps;
}

Status CudaPipeline::launched(const BatchPtr& batch, const CollectivePortion& portion) {
  const bool has_sums = std::any_of(portion.outputs.begin(), portion.outputs.end(),
                                    [&](const auto& output) { return !batch->items[output.item].is_spread; });
  const std::uint32_t left = (portion.steps.empty() ? 0 : 1) + (has_sums ? 1 : 0);
  const auto flight =
      std::make_shared<Flight>(Flight{batch, portion, std::exchange(batch->ring, std::nullopt), left});
  CudaEventPool::Event after;
  if (!portion.steps.empty()) {
    const auto marked = collectives_.mark([this, flight] {
      landed(*flight);
      done(*flight->batch, flight->portion.steps);
    });
    if (!marked) return marked.error();
    after = *marked;
    for_items(*batch, portion.steps, [&](Item& item) { say_queued(*batch, item, after); });
  }
  if (has_sums) copy_out(flight, after);
  return {};
}

// With the last of its calls all that a spread writes has been queued.
void CudaPipeline::say_queued(const Batch& batch, Item& item, const CudaEventPool::Event& event) const {
  if (--item.unbegun > 0 || !item.is_spread) return;
  for (const LocalPiece& piece : std::span(batch.pieces).subspan(item.first, item.count))
    if (piece.out != nullptr && piece.watch != nullptr) piece.watch->on_queued(bytes_of(piece), event);
}

void CudaPipeline::landed(Flight& flight) {
  if (--flight.left == 0 && flight.ring) ring_.give_back(*flight.ring);
}

void CudaPipeline::copy_out(const FlightPtr& flight, const CudaEventPool::Event& after) {
  Batch& batch = *flight->batch;
  CudaCopier::Job job;
  job.after = after;
  job.priority = INT32_MIN;
  const std::string* label = nullptr;
  for (const CollectiveOutput& output : flight->portion.outputs) {
    const Item& item = batch.items[output.item];
    if (item.is_spread) continue;
    const LocalPiece& piece = batch.pieces[output.piece];
    if (label == nullptr) label = &item.label;
    job.priority = std::max<std::int64_t>(job.priority, piece.priority);
    auto* const from = output.is_input ? const_cast<std::byte*>(piece.in) + output.offset
                                       : ring_memory_ + *flight->ring + output.at;
    CudaCopy copy = copy_of(piece, from, piece.sum, output.offset, output.bytes, memory_->holds(piece.home));
    copy.is_in_ring = !output.is_input;
    append(job.copies, copy);
  }
  const auto shown = std::make_shared<Nvtx::Range>(range("copy to host", *label));
  job.then = [this, flight, shown] {
    landed(*flight);
    for (const CollectiveOutput& output : flight->portion.outputs)
      bring(*flight->batch, output);
    done(*flight->batch, flight->portion.outputs);
  };
  to_host_.add(std::move(job));
}

void CudaPipeline::bring(Batch& batch, const CollectiveOutput& output) {
  const Item& item = batch.items[output.item];
  if (item.is_spread || --batch.parts[output.piece] > 0) return;
  reports_->add({.kind = CudaNews::Item::Kind::summed,
                 .number = item.collective.number,
                 .index = output.piece - item.first});
}

void CudaPipeline::settle(Batch& batch, Item& item, const std::optional<Error>& error) {
  if (std::exchange(item.is_over, true)) return;
  item.range = {};
  reports_->add({.kind = CudaNews::Item::Kind::ended, .number = item.collective.number, .error = error});
  if (--batch.open > 0) return;
  std::erase_if(open_, [&](const BatchPtr& other) { return other.get() == &batch; });
}

}  // namespace bps

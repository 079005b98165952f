#include "client/src/gpu/cuda_batches.h"

#include <algorithm>
#include <utility>

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
    case Operation::bit_and:  // the API refuses them where NCCL sums
    case Operation::bit_or:
    case Operation::bit_xor: return NcclOperation::sum;
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

Status CudaBatches::open() {
  if (ring_.bytes() == 0) return {};
  void* memory = nullptr;
  if (const CudaCode code = means_.device.api().allocate(memory, ring_.bytes()); code != CudaCode::success)
    return means_.device.error(CudaCall::allocate, code);
  ring_memory_ = static_cast<std::byte*>(memory);
  return {};
}

void CudaBatches::close() {
  if (ring_memory_ != nullptr) (void)means_.device.api().free(std::exchange(ring_memory_, nullptr));
}

// The pieces of each work lie behind those of the work before.
void CudaBatches::add(CudaOrders& orders, const std::optional<Error>& error) {
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
    add(std::move(batch), error);
  }
}

void CudaBatches::add(BatchPtr batch, const std::optional<Error>& error) {
  CollectivePlan plan(place_);
  for (const Item& item : batch->items)
    plan.add(item.is_spread, item.collective, std::span(batch->pieces).subspan(item.first, item.count));
  batch->portions = plan.take();
  batch->parts.resize(batch->pieces.size());
  batch->open = batch->items.size();
  open_.push_back(batch);
  if (error) {
    for (Item& item : batch->items)
      settle(*batch, item, error);
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
  unbegun_.push_back(std::move(batch));
}

Status CudaBatches::begin() {
  while (!unbegun_.empty()) {
    const BatchPtr batch = unbegun_.front();
    if (!batch->is_begun) begin(batch);
    if (batch->next == batch->portions.size()) {
      unbegun_.pop_front();
      continue;
    }
    const auto begun = begin_portion(batch);
    if (!begun) return begun.error();
    if (!*begun) break;
  }
  return {};
}

void CudaBatches::begin(const BatchPtr& batch) {
  batch->is_begun = true;
  for (Item& item : batch->items) {
    if (item.left > 0) item.range = means_.nvtx.range(item.is_spread ? "spread" : "reduce", item.label);
    for (std::size_t i = 0; !item.is_spread && i < item.count; ++i) {
      // Of a broadcast from another host there is nothing to bring.
      if (batch->pieces[item.first + i].owner == place_.self && batch->parts[item.first + i] == 0)
        means_.reports.add(
            {.kind = CudaNews::Item::Kind::summed, .number = item.collective.number, .index = i});
    }
    if (item.left == 0) settle(*batch, item);
  }
}

Result<bool> CudaBatches::begin_portion(const BatchPtr& batch) {
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
      const auto ready = means_.nccl->poll();
      if (!ready || !*ready) return ready;
      means_.lease.enter_nccl("a collective of NCCL");
      const Status status = means_.nccl->begin(steps_of(*batch, portion), means_.collectives.stream());
      means_.lease.leave();
      if (!status.ok()) return status.error();
    }
    batch->step = Batch::Step::launch;
  }
  // What is in progress has perhaps not come to the stream yet, and an event would be before it.
  if (!portion.steps.empty()) {
    const auto ready = means_.nccl->poll();
    if (!ready || !*ready) return ready;
  }
  if (const Status status = launched(batch, portion); !status.ok()) return status.error();
  batch->step = Batch::Step::wait;
  ++batch->next;
  return true;
}

// The root of a broadcast hands on what it owns of the answer, and wants none of it: it goes by way of the
// ring, and NCCL is not begun before it is there.
Status CudaBatches::load(const BatchPtr& batch, const CollectivePortion& portion) {
  CudaCopier::Job job;
  for (const CollectiveOutput& output : portion.outputs) {
    if (!batch->items[output.item].is_spread) continue;
    const LocalPiece& piece = batch->pieces[output.piece];
    append(job.copies, copy_of(piece, ring_memory_ + *batch->ring + output.at, piece.answer, output.offset,
                               output.bytes, means_.memory.holds(piece.home)));
  }
  if (job.copies.empty()) return {};
  job.priority = INT32_MAX;
  batch->is_loading = true;
  job.then = [batch] { batch->is_loading = false; };
  means_.to_device.add(std::move(job));
  return means_.to_device.pump();
}

std::vector<NcclStep> CudaBatches::steps_of(const Batch& batch, const CollectivePortion& portion) const {
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
        call.in = batch.pieces[step.piece + place_.self].out;
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

Status CudaBatches::launched(const BatchPtr& batch, const CollectivePortion& portion) {
  const bool has_sums = std::any_of(portion.outputs.begin(), portion.outputs.end(),
                                    [&](const auto& output) { return !batch->items[output.item].is_spread; });
  const std::uint32_t left = (portion.steps.empty() ? 0 : 1) + (has_sums ? 1 : 0);
  const auto flight =
      std::make_shared<Flight>(Flight{batch, portion, std::exchange(batch->ring, std::nullopt), left});
  CudaEventPool::Event after;
  if (!portion.steps.empty()) {
    const auto marked = means_.collectives.mark([this, flight] {
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
void CudaBatches::say_queued(const Batch& batch, Item& item, const CudaEventPool::Event& event) const {
  if (--item.unbegun > 0 || !item.is_spread) return;
  for (const LocalPiece& piece : std::span(batch.pieces).subspan(item.first, item.count))
    if (piece.out != nullptr && piece.watch != nullptr) piece.watch->on_queued(bytes_of(piece), event);
}

void CudaBatches::landed(Flight& flight) {
  if (--flight.left == 0 && flight.ring) ring_.give_back(*flight.ring);
}

void CudaBatches::copy_out(const FlightPtr& flight, const CudaEventPool::Event& after) {
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
    CudaCopy copy =
        copy_of(piece, from, piece.sum, output.offset, output.bytes, means_.memory.holds(piece.home));
    copy.is_in_ring = !output.is_input;
    append(job.copies, copy);
  }
  const auto shown = std::make_shared<Nvtx::Range>(means_.nvtx.range("copy to host", *label));
  job.then = [this, flight, shown] {
    landed(*flight);
    for (const CollectiveOutput& output : flight->portion.outputs)
      bring(*flight->batch, output);
    done(*flight->batch, flight->portion.outputs);
  };
  means_.to_host.add(std::move(job));
}

void CudaBatches::bring(Batch& batch, const CollectiveOutput& output) {
  const Item& item = batch.items[output.item];
  if (item.is_spread || --batch.parts[output.piece] > 0) return;
  means_.reports.add({.kind = CudaNews::Item::Kind::summed,
                      .number = item.collective.number,
                      .index = output.piece - item.first});
}

void CudaBatches::settle(Batch& batch, Item& item, const std::optional<Error>& error) {
  if (std::exchange(item.is_over, true)) return;
  item.range = {};
  means_.reports.add({.kind = CudaNews::Item::Kind::ended, .number = item.collective.number, .error = error});
  if (--batch.open > 0) return;
  std::erase_if(open_, [&](const BatchPtr& other) { return other.get() == &batch; });
}

std::optional<TensorId> CudaBatches::first_tensor() const {
  const auto blamed =
      unbegun_.empty() ? open_.begin() : std::find(open_.begin(), open_.end(), unbegun_.front());
  if (blamed == open_.end()) return {};
  const std::vector<Item>& items = (*blamed)->items;
  const auto item = std::find_if(items.begin(), items.end(), [](const Item& i) { return !i.is_over; });
  if (item == items.end()) return {};
  return item->collective.tensor;
}

void CudaBatches::end_unbegun(const Error& error) {
  for (const BatchPtr& batch : std::exchange(unbegun_, {})) {
    if (batch->next > 0 || batch->step != Batch::Step::wait) continue;
    for (Item& item : batch->items)
      settle(*batch, item, error);
  }
}

void CudaBatches::end_all(const std::optional<Error>& error) {
  for (const BatchPtr& batch : std::exchange(open_, {}))
    for (Item& item : batch->items)
      settle(*batch, item, error);
}

}  // namespace bps

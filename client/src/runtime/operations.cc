#include "client/src/runtime/operations.h"

#include <new>
#include <utility>

namespace bps {

Error closed_error() { return make_error(ErrorCode::closed, "the client is closed", "open a new one"); }

void Operations::add(TensorId id, TensorShape shape) {
  tensors_.update([&](auto& tensors) {
    if (id.value >= tensors.size()) tensors.resize(id.value + 1);
    if (tensors[id.value] != nullptr) return;
    tensors[id.value] = std::make_unique<Tensor>();
    tensors[id.value]->id = id;
    tensors[id.value]->shape = std::move(shape);
  });
}

Operations::Tensor* Operations::at(TensorId id) const {
  return tensors_.read(
      [&](const auto& tensors) { return id.value < tensors.size() ? tensors[id.value].get() : nullptr; });
}

const TensorShape* Operations::find(TensorId id) const {
  const Tensor* tensor = at(id);
  return tensor != nullptr ? &tensor->shape : nullptr;
}

// Claims the tensor for one operation. What finds no memory has claimed and begun nothing.
Result<std::shared_ptr<OperationRecord>> Operations::start(Request&& request) {
  Tensor& tensor = *at(request.tensor);
  auto record = std::make_shared<OperationRecord>(callbacks_);
  Use use = Use::idle;
  if (!tensor.use.compare_exchange_strong(use, Use::under_way, std::memory_order_acq_rel)) {
    if (use == Use::viewed) {
      return make_error(ErrorCode::invalid_argument,
                        "the answer of tensor '" + tensor.shape.name + "' is still being read in place",
                        "release it before the next operation on the same tensor");
    }
    return make_error(ErrorCode::invalid_argument, "tensor '" + tensor.shape.name + "' is under way already",
                      "wait for the operation that is under way before the next one on the same tensor");
  }
  struct Claim {
    Tensor& tensor;
    bool is_kept = false;
    ~Claim() {
      if (!is_kept) tensor.use.store(Use::idle, std::memory_order_release);
    }
  } claim{tensor};
  if (request.memory() != MemoryKind::host) request.watch = record;
  claim.is_kept = leave({&tensor, record, std::move(request), nullptr});
  if (!claim.is_kept) return closed_error();
  return record;
}

void Operations::release(TensorId id, std::shared_ptr<const AnswerView> view) {
  Tensor& tensor = *at(id);
  // What the loop must know comes before what the next operation looks at.
  (void)leave({&tensor, nullptr, {}, std::move(view)});
  tensor.use.store(Use::idle, std::memory_order_release);
}

// False: the client is closed. Once the note is there it is begun, so nothing may fail any more: without
// memory to wake the loop, the next note wakes it, or a wait that expires.
bool Operations::leave(Note&& note) {
  const auto left = notes_.push(std::move(note));
  if (left == MpscQueue<Note>::Pushed::closed) return false;
  if (left != MpscQueue<Note>::Pushed::wake && !is_unheard_.exchange(false, std::memory_order_relaxed))
    return true;
  try {
    loop_.post([this] { begin_noted(); });
  } catch (const std::bad_alloc&) {
    is_unheard_.store(true, std::memory_order_relaxed);
  }
  return true;
}

void Operations::begin_noted() {
  if (is_stopped_) return;
  notes_.take(noted_);
  for (Note& note : noted_)
    begin(note);
  noted_.clear();
  if (!notes_.prepare_sleep()) loop_.post([this] { begin_noted(); });
}

void Operations::begin(Note& note) {
  Tensor& tensor = *note.tensor;
  if (note.record == nullptr) return engine_->release(tensor.id);
  tensor.record = std::move(note.record);
  tensor.view = note.request.view;
  tensor.on_gpu = note.request.memory() != MemoryKind::host;
  // Small enough for std::function to hold without an allocation.
  note.request.done = [this, &tensor](const Result<std::uint32_t>& weight) { end(tensor, weight); };
  if (Status status = engine_->begin(std::move(note.request)); !status.ok()) end(tensor, status.error());
}

void Operations::end(Tensor& tensor, const Result<std::uint32_t>& weight) {
  auto record = std::exchange(tensor.record, nullptr);
  if (record == nullptr) return;  // drop() has ended it, and the engine's word was still on its way
  std::shared_ptr<const AnswerView> view;
  if (tensor.view && weight.ok()) {
    view = engine_->view(tensor.id);
    if (view == nullptr) view = std::make_shared<const AnswerView>(nullptr, 0);  // it has no elements
  }
  // First, so that who has waited may start the next operation.
  tensor.use.store(view != nullptr ? Use::viewed : Use::idle, std::memory_order_release);
  const OperationRecord::Finished finished = record->finish(weight, view);
  if (view != nullptr && !finished.has_reader) release(tensor.id, std::move(view));
  if (!finished.is_awaited) return;
  to_wake_.push_back(std::move(record));
  if (to_wake_.size() == 1 && !is_stopped_) loop_.post([this] { wake_waiters(); });
}

void Operations::wake_waiters() {
  for (const auto& record : to_wake_)
    record->wake();
  to_wake_.clear();
}

void Operations::stop() {
  is_stopped_ = true;
  (void)notes_.close();
}

Status Operations::drop(const Status& gpu) {
  notes_.take(noted_);
  for (Note& note : noted_) {
    if (note.record == nullptr) continue;
    note.tensor->record = std::move(note.record);
    note.tensor->on_gpu = false;  // it has not begun
  }
  noted_.clear();
  std::vector<Tensor*> left;
  tensors_.read([&](const auto& tensors) {
    for (const auto& tensor : tensors) {
      if (tensor != nullptr && tensor->record != nullptr) left.push_back(tensor.get());
    }
  });
  Status touched;
  for (Tensor* tensor : left) {
    if (tensor->on_gpu && !gpu.ok()) touched = gpu;
    end(*tensor, tensor->on_gpu && !gpu.ok() ? gpu.error() : closed_error());
  }
  wake_waiters();
  return touched;
}

}  // namespace bps

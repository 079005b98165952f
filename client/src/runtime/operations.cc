#include "client/src/runtime/operations.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

namespace bps {

Error closed_error() { return make_error(ErrorCode::closed, "the client is closed", "open a new one"); }

Operations::Operations(EventLoop& loop, std::shared_ptr<CallbackThread> callbacks)
    : loop_(loop), callbacks_(std::move(callbacks)), ended_(std::make_shared<Tensor>()) {
  ended_->use = Use::dropped;
  (void)notes_.prepare_sleep();  // the first note wakes the loop
}

void Operations::add(TensorId id, TensorShape shape) {
  tensors_.update([&](auto& tensors) {
    if (id.value >= tensors.size()) tensors.resize(id.value + 1);
    if (tensors[id.value] != nullptr) return;
    tensors[id.value] = std::make_shared<Tensor>();
    tensors[id.value]->id = id;
    tensors[id.value]->shape = std::move(shape);
  });
}

std::shared_ptr<Operations::Tensor> Operations::at(TensorId id) const {
  return tensors_.read(
      [&](const auto& tensors) { return id.value < tensors.size() ? tensors[id.value] : nullptr; });
}

Result<std::shared_ptr<const TensorShape>> Operations::find(TensorId id) const {
  std::shared_ptr<Tensor> tensor = at(id);
  if (tensor == nullptr) {
    return make_error(ErrorCode::invalid_argument,
                      "tensor " + std::to_string(id.value) + " has not been declared by this client",
                      "use what bps_declare returned");
  }
  if (tensor->use.load(std::memory_order_acquire) == Use::dropped) return refusal(*tensor, id, Use::dropped);
  const TensorShape* const shape = &tensor->shape;
  return std::shared_ptr<const TensorShape>(std::move(tensor), shape);
}

// Why a tensor that is in `use` takes nothing else.
Error Operations::refusal(const Tensor& tensor, TensorId id, Use use) const {
  const std::string name =
      "tensor " + (&tensor == ended_.get() ? std::to_string(id.value) : "'" + tensor.shape.name + "'");
  const auto refused = [](std::string message, const char* advice) {
    return make_error(ErrorCode::invalid_argument, std::move(message), advice);
  };
  if (use == Use::dropped)
    return refused(name + " has been dropped", "declare it again, and use what that returns");
  if (use == Use::viewed) {
    return refused("the answer of " + name + " is still being read in place",
                   "release it before the next operation on the same tensor, or its drop");
  }
  return refused(
      name + " is under way already",
      "wait for the operation that is under way before the next one on the same tensor, or its drop");
}

Result<std::shared_ptr<OperationRecord>> Operations::start(Request&& request) {
  auto record = std::make_shared<OperationRecord>(callbacks_);
  if (request.memory() != MemoryKind::host) request.watch = record;
  const TensorId tensor = request.tensor;
  const Status status = claim(tensor, Use::under_way, {nullptr, record, std::move(request), nullptr});
  if (!status.ok()) return status.error();
  return record;
}

Result<std::shared_ptr<OperationRecord>> Operations::drop(TensorId tensor) {
  auto record = std::make_shared<OperationRecord>(callbacks_);
  const Status status = claim(tensor, Use::dropped, {nullptr, record, {}, nullptr, true});
  if (!status.ok()) return status.error();
  return record;
}

// ---- on groups ----

Result<std::shared_ptr<OperationRecord>> Operations::start_call(GroupRequest&& request) {
  GroupNote note;
  note.request = std::move(request);
  return start_on_group(std::move(note));
}

Result<std::shared_ptr<OperationRecord>> Operations::drop_group(GroupId group) {
  GroupNote note;
  note.group = group;
  return start_on_group(std::move(note));
}

Result<std::shared_ptr<OperationRecord>> Operations::join_group(GroupId group) {
  GroupNote note;
  note.group = group;
  note.is_join = true;
  return start_on_group(std::move(note));
}

Result<std::shared_ptr<OperationRecord>> Operations::start_on_group(GroupNote&& note) {
  auto record = std::make_shared<OperationRecord>(callbacks_);
  if (!leave({nullptr, record, {}, nullptr, false, std::make_unique<GroupNote>(std::move(note))}))
    return closed_error();
  return record;
}

bool Operations::add_group(GroupSpec spec) {
  auto note = std::make_unique<GroupNote>();
  note->spec = std::move(spec);
  return leave({nullptr, nullptr, {}, nullptr, false, std::move(note)});
}

void Operations::begin_on_group(Note& note) {
  GroupNote& asked = *note.group;
  if (asked.spec) {
    (void)engine_->declare_group(std::move(*asked.spec));
    return;
  }
  const OperationRecord* const record = note.record.get();
  on_groups_[record] = {std::move(note.record), asked.request ? asked.request->given : nullptr};
  Status status;
  if (asked.request) {
    asked.request->ticket = ticket_of(*record);
    asked.request->request.done = [this, record](const Result<std::uint32_t>& weight) {
      end_on_group(record, weight);
    };
    status = engine_->begin_call(std::move(*asked.request));
  } else if (asked.is_join) {
    status = engine_->join_group(
        asked.group, ticket_of(*record),
        [this, record](const Result<std::uint32_t>& last) { end_on_group(record, last); });
  } else {
    status = engine_->drop_group(asked.group, [this, record](const Status& dropped) {
      end_on_group(record, dropped.ok() ? Result<std::uint32_t>(0) : dropped.error());
    });
  }
  if (!status.ok()) end_on_group(record, status.error());
}

namespace {

// Of each rank's part.
std::shared_ptr<const AnswerView> view_of(const GivenParts& given) {
  auto view = std::make_shared<AnswerView>(given.memory, given.bytes.size());
  std::uint64_t begin = 0;
  for (const std::uint64_t bytes : given.bytes) {
    view->add(std::span<const std::byte>(given.memory.get() + begin, bytes), begin);
    begin += bytes;
  }
  return view;
}

}  // namespace

void Operations::end_on_group(const OperationRecord* key, const Result<std::uint32_t>& weight) {
  const auto found = on_groups_.find(key);
  if (found == on_groups_.end()) return;  // end_left() has ended it
  const auto [record, given] = std::move(found->second);
  on_groups_.erase(found);
  std::shared_ptr<const AnswerView> view;
  if (given != nullptr && weight.ok()) view = view_of(*given);
  series_.end();
  if (record->finish(weight, std::move(view)).is_awaited) wake_later(record);
}

// For one operation, which `note` begins. What finds no memory has claimed and begun nothing.
Status Operations::claim(TensorId id, Use use, Note&& note) {
  Use found = Use::idle;
  // Under the lock, which is cheaper than to share it: once claimed it stays.
  Tensor* const tensor = tensors_.read([&](const auto& tensors) {
    Tensor* const known = tensors[id.value].get();
    return known->use.compare_exchange_strong(found, use, std::memory_order_acq_rel) ? known : nullptr;
  });
  if (tensor == nullptr) return refusal(*at(id), id, found);
  struct Claim {
    Tensor& tensor;
    bool is_kept = false;
    ~Claim() {
      if (!is_kept) tensor.use.store(Use::idle, std::memory_order_release);
    }
  } claim{*tensor};
  note.tensor = tensor;
  claim.is_kept = leave(std::move(note));
  if (!claim.is_kept) return closed_error();
  return {};
}

void Operations::release(TensorId id, std::shared_ptr<const AnswerView> view) {
  const std::shared_ptr<Tensor> tensor = at(id);
  // What the loop must know comes before what the next operation looks at.
  (void)leave({tensor.get(), nullptr, {}, std::move(view)});
  tensor->use.store(Use::idle, std::memory_order_release);
}

// What it moves for this rank; of what is no exchange in host memory: more than anything.
std::size_t Operations::bytes_of(const Note& note) {
  const bool is_call = note.group != nullptr && note.group->request;
  if (note.is_drop || (note.group != nullptr && !is_call)) return SIZE_MAX;
  if (is_call && !note.group->request->more.empty()) return SIZE_MAX;
  const Request& request = is_call ? note.group->request->request : note.request;
  if (request.memory() != MemoryKind::host) return SIZE_MAX;
  return std::max(request.in.bytes.size(), request.out.bytes.size());
}

// False: the client is closed. Once the note is there it is begun, so nothing may fail any more: without
// memory to wake the loop, the next note wakes it, or a wait that expires.
bool Operations::leave(Note&& note) {
  const bool is_operation = note.record != nullptr;
  if (is_operation) series_.start(bytes_of(note), loop_.now());
  struct Start {
    LoneSeries& series;
    bool is_kept;
    ~Start() {
      if (!is_kept) series.end();
    }
  } start{series_, !is_operation};
  const auto left = notes_.push(std::move(note));
  if (left == MpscQueue<Note>::Pushed::closed) return false;
  start.is_kept = true;
  if (left != MpscQueue<Note>::Pushed::wake && !is_unheard_.exchange(false, std::memory_order_relaxed))
    return true;
  try {
    if (series_.goes_on() && loop_.run_here([this] { begin_noted(); })) return true;
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
  if (note.group != nullptr) return begin_on_group(note);
  Tensor& tensor = *note.tensor;
  if (note.record == nullptr) return engine_->release(tensor.id);
  tensor.record = std::move(note.record);
  tensor.view = note.request.view;
  tensor.on_gpu = note.request.memory() != MemoryKind::host;
  if (note.is_drop) return begin_drop(tensor.id);
  // Small enough for std::function to hold without an allocation.
  note.request.done = [this, &tensor](const Result<std::uint32_t>& weight) { end(tensor, weight); };
  if (Status status = engine_->begin(std::move(note.request)); !status.ok()) end(tensor, status.error());
}

void Operations::begin_drop(TensorId id) {
  // Who ends it may come late: then the tensor is no longer here.
  const auto ended = [this, id](const Status& status) {
    end(*at(id), status.ok() ? Result<std::uint32_t>(0) : status.error());
  };
  if (Status status = engine_->drop(id, ended); !status.ok()) ended(status);
}

void Operations::end(Tensor& tensor, const Result<std::uint32_t>& weight) {
  auto record = std::exchange(tensor.record, nullptr);
  if (record == nullptr) return;  // end_left() has ended it, and the engine's word was still on its way
  std::shared_ptr<const AnswerView> view;
  if (tensor.view && weight.ok()) {
    view = engine_->view(tensor.id);
    if (view == nullptr) view = std::make_shared<const AnswerView>(nullptr, 0);  // it has no elements
  }
  // First, so that who has waited may start the next operation.
  if (tensor.use.load(std::memory_order_relaxed) == Use::dropped) {
    tensors_.update([&](auto& tensors) { tensors[tensor.id.value] = ended_; });
  } else {
    tensor.use.store(view != nullptr ? Use::viewed : Use::idle, std::memory_order_release);
  }
  series_.end();
  const OperationRecord::Finished finished = record->finish(weight, view);
  if (view != nullptr && !finished.has_reader) release(tensor.id, std::move(view));
  if (finished.is_awaited) wake_later(std::move(record));
}

void Operations::wake_later(std::shared_ptr<OperationRecord> record) {
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

Status Operations::end_left(const Status& gpu) {
  notes_.take(noted_);
  for (Note& note : noted_) {
    if (note.record == nullptr) continue;
    if (note.group != nullptr) {
      const OperationRecord* const record = note.record.get();
      on_groups_[record] = {std::move(note.record), nullptr};
      continue;
    }
    note.tensor->record = std::move(note.record);
    note.tensor->on_gpu = false;  // it has not begun
  }
  noted_.clear();
  std::vector<std::shared_ptr<Tensor>> left;
  tensors_.read([&](const auto& tensors) {
    for (const auto& tensor : tensors) {
      if (tensor != nullptr && tensor->record != nullptr) left.push_back(tensor);
    }
  });
  while (!on_groups_.empty())
    end_on_group(on_groups_.begin()->first, closed_error());
  Status touched;
  for (const auto& tensor : left) {
    if (tensor->on_gpu && !gpu.ok()) touched = gpu;
    end(*tensor, tensor->on_gpu && !gpu.ok() ? gpu.error() : closed_error());
  }
  wake_waiters();
  return touched;
}

}  // namespace bps

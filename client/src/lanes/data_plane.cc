#include "client/src/lanes/data_plane.h"

#include <fmt/core.h>

#include <algorithm>

#include "client/src/engine/operation_check.h"
#include "client/src/engine/scheduler_error.h"

namespace bps {

DataPlane::DataPlane(EventLoop& loop, const Transports& transports, Owner& owner, const ClientConfig& config,
                     Logger log, MakeGroup make_group)
    : loop_(loop),
      lane_loops_{{&loop}},
      transports_(transports),
      owner_(owner),
      config_(config),
      log_(std::move(log)),
      frame_(PushPull{}),
      make_group_(std::move(make_group)) {}

DataPlane::~DataPlane() {
  loop_.cancel(links_timer_);
  // Before the memory that their connections may hold.
  for (const auto& lane : lanes_)
    lane->close();
  if (local_links_ != nullptr) local_links_->close();
}

void DataPlane::count_lanes() {
  std::uint64_t up = 0, shared = 0, rdma = 0;
  for (const auto& lane : lanes_) {
    if (!lane->welcomed()) continue;
    ++up;
    if (lane->way() == Lane::Way::shared_memory) ++shared;
    if (lane->way() == Lane::Way::rdma) ++rdma;
  }
  stats_->lanes.store(up, std::memory_order_relaxed);
  stats_->shm_lanes.store(shared, std::memory_order_relaxed);
  stats_->rdma_lanes.store(rdma, std::memory_order_relaxed);
}

TensorState* DataPlane::find(TensorId tensor) const {
  return tensor.value < tensors_.size() ? tensors_[tensor.value].get() : nullptr;
}

Status DataPlane::add_tensor(const TensorDeclaration& declaration, const DeclaredTensor& declared) {
  if (const TensorState* known = find(declared.tensor)) {
    if (known->shape().name == declaration.name && known->shape().elements == declaration.elements) return {};
    return scheduler_error(fmt::format("tensor id {} for both '{}' and '{}'", declared.tensor.value,
                                       known->shape().name, declaration.name));
  }
  const Partitioner partitioner(declaration.elements, declaration.dtype, job_.partition_bytes);
  const std::uint64_t first = declared.first_partition.value;
  const std::uint64_t count = partitioner.count();
  if (declared.tensor.value >= kMaxTensorsPerJob || count > kMaxPartitionsPerJob ||
      first + count > kMaxPartitionsPerJob) {
    return scheduler_error(fmt::format("tensor {} with partitions {} to {}, beyond the limits",
                                       declared.tensor.value, first, first + count));
  }
  if (declared.owners.size() != count) {
    return scheduler_error(fmt::format("{} owners for tensor '{}', which has {} partitions",
                                       declared.owners.size(), declaration.name, count));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const bool taken = first + i < partitions_.size() && partitions_[first + i] != nullptr;
    const LaneIndex owner = declared.owners[i];
    const bool is_closed = owner.value < lanes_.size() && lanes_[owner.value]->closed();
    if (owner.value >= lanes_.size() || taken || is_closed) {
      return scheduler_error(fmt::format("partition {} of tensor '{}' on lane {} of {}{}{}", first + i,
                                         declaration.name, owner.value, lanes_.size(),
                                         taken ? ", already in use" : "", is_closed ? ", closed" : ""));
    }
  }
  if (declared.tensor.value >= tensors_.size()) tensors_.resize(declared.tensor.value + 1);
  if (first + count > partitions_.size()) partitions_.resize(first + count, nullptr);
  auto& tensor = tensors_[declared.tensor.value];
  tensor = std::make_unique<TensorState>(declaration, declared, job_.partition_bytes);
  for (Partition& partition : tensor->partitions()) {
    partitions_[partition.id.value] = &partition;
    partition.since = first_epoch_;
    queue_of(partition.lane).reserve(partition.lane, 1);
  }
  if (group_size_ == 1) return {};
  const Status added = group_->add(*tensor);
  if (added.ok()) return {};
  Error error = added.error();
  error.message = fmt::format("no memory for tensor '{}' among the ranks of this host: {}", declaration.name,
                              error.message);
  tensor->poison(error);
  return error;
}

Status DataPlane::push_pull(TensorId id, Memory memory, Operation operation, OperationDone done) {
  TensorState* tensor = find(id);
  if (tensor == nullptr) {
    return make_error(ErrorCode::invalid_argument, fmt::format("tensor {} has not been declared", id.value));
  }
  if (operation == Operation::broadcast) {
    return make_error(ErrorCode::invalid_argument, "push_pull cannot broadcast", "call broadcast");
  }
  if (Status s = check_operation(*tensor, operation); !s.ok()) return s;
  if (Status s = check_memory(tensor->shape(), config_.local_group, memory.kind, memory.view); !s.ok())
    return s;
  const std::span in = memory.in;
  const std::span out = memory.out;
  if (Status s = check_buffer(tensor->shape(), "in", in.data(), in.size()); !s.ok()) return s;
  if (!memory.view) {
    if (Status s = check_buffer(tensor->shape(), "out", out.data(), out.size()); !s.ok()) return s;
    if (Status s = check_overlap(tensor->shape(), in.data(), out.data()); !s.ok()) return s;
  }
  TensorState::RoundInput round;
  round.in = in.data();
  round.out = memory.view ? nullptr : out.data();
  round.operation = operation;
  round.retain = config_.retain;
  round.unequal_sums = config_.unequal_sums;
  round.view = memory.view;
  round.in_home = std::move(memory.in_home);
  round.out_home = std::move(memory.out_home);
  round.memory = memory.kind;
  round.in_event = std::move(memory.in_event);
  round.out_event = std::move(memory.out_event);
  round.watch = std::move(memory.watch);
  round.done = std::move(done);
  return begin(*tensor, std::move(round));
}

Status DataPlane::broadcast(TensorId id, Memory memory, Rank root, OperationDone done) {
  TensorState* tensor = find(id);
  if (tensor == nullptr) {
    return make_error(ErrorCode::invalid_argument, fmt::format("tensor {} has not been declared", id.value));
  }
  const std::span buffer = memory.out;
  if (Status s = check_memory(tensor->shape(), config_.local_group, memory.kind, memory.view); !s.ok())
    return s;
  if (Status s = check_buffer(tensor->shape(), "buffer", buffer.data(), buffer.size()); !s.ok()) return s;
  if (Status s = check_root(root.value, config_.world_size); !s.ok()) return s;
  TensorState::RoundInput round;
  round.is_root = root == config_.rank;
  round.in = round.is_root ? buffer.data() : nullptr;
  round.out = buffer.data();
  round.operation = Operation::broadcast;
  round.root = root;
  round.retain = config_.retain;
  round.in_home = std::move(memory.in_home);
  round.memory = memory.kind;
  round.in_event = std::move(memory.in_event);
  round.watch = std::move(memory.watch);
  round.done = std::move(done);
  return begin(*tensor, std::move(round));
}

Status DataPlane::begin(TensorState& tensor, TensorState::RoundInput round) {
  if (tensor.partitions().empty()) {
    loop_.post([done = std::move(round.done), weight = config_.world_size] { done(weight); });
    return {};
  }
  if (round.memory != MemoryKind::host) {
    if (Status s = enter_group(tensor); !s.ok()) return s;
  }
  if (group_ != nullptr && group_->left()) return *group_->left();
  round.has_root = group_ != nullptr && group_->has_root(round.root);
  if (Status s = tensor.begin(std::move(round)); !s.ok()) return s;
  ++under_way_;
  tensor.set_operation_number(++begun_);
  if (tensor.is_grouped()) {
    const bool is_broadcast = tensor.operation() == Operation::broadcast;
    group_->begun(tensor, is_broadcast ? std::optional(tensor.root()) : std::nullopt);
    return {};
  }
  for (Partition& partition : tensor.partitions())
    queue(partition);
  pump();
  return {};
}

// After every change that may have been what it waited for.
void DataPlane::queue(Partition& partition) {
  if (partition.owner->may_queue(partition)) queue_of(partition.lane).push(partition);
}

std::shared_ptr<const AnswerView> DataPlane::view(TensorId id) const {
  const TensorState* tensor = find(id);
  return tensor != nullptr ? tensor->view() : nullptr;
}

void DataPlane::release(TensorId id) {
  if (TensorState* tensor = find(id)) tensor->release();
}

void DataPlane::pump() {
  for (ContributionQueue& queue : queues_)
    pump(queue);
}

void DataPlane::pump(ContributionQueue& queue) {
  while (SendItem* item = queue.pop())
    send(static_cast<Partition&>(*item));
}

void DataPlane::send(Partition& partition) {
  TensorState& tensor = *partition.owner;
  Lane& lane = *lanes_[partition.lane.value];
  auto& push = *std::get_if<PushPull>(&frame_);
  push.job_run = job_.job_run;
  push.partition = partition.id;
  push.round = tensor.round();
  push.epoch = job_.epoch;
  push.generation = job_.generation;
  push.operation = tensor.operation();
  push.root = tensor.root();
  push.error = tensor.refused().value_or(Error{});
  push.announced = !may_send(partition);
  if (push.announced) {
    queue_of(partition.lane).take_back(partition);
    tensor.on_announced(partition);
    return lane.send(frame_, {}, 0);
  }
  const Payload payload = tensor.contribution(partition);
  tensor.on_handed_over(partition, !payload.bytes.empty());
  lane.send(frame_, payload, payload.bytes.empty() ? 0 : std::uint64_t{partition.id.value} + 1);
  stats_->pushed_bytes.fetch_add(payload.bytes.size(), std::memory_order_relaxed);
  if (!lane.can_take_more()) queue_of(partition.lane).set_ready(partition.lane, false);
}

bool DataPlane::may_send(Partition& partition) {
  if (partition.counted) return false;
  const TensorState& tensor = *partition.owner;
  const Lane& lane = *lanes_[partition.lane.value];
  const bool waits_for_others = tensor.operation() != Operation::broadcast && !tensor.is_async();
  if (partition.asked || partition.cost == 0 || !waits_for_others || lane.way() == Lane::Way::shared_memory)
    return true;
  Allowance& allowance = allowances_[partition.lane.value];
  if (partition.cost > allowance.limit - std::min(allowance.used, allowance.limit)) return false;
  allowance.used += partition.cost;
  partition.unasked = true;
  return true;
}

void DataPlane::give_back(Partition& partition) {
  if (std::exchange(partition.unasked, false)) allowances_[partition.lane.value].used -= partition.cost;
}

void DataPlane::count_resent() { stats_->resent.fetch_add(1, std::memory_order_relaxed); }

// May break the partition's lane off, so it comes last in what a lane tells.
void DataPlane::settle(Partition& partition) {
  TensorState& tensor = *partition.owner;
  if (tensor.is_over(partition)) give_back(partition);
  if (partition.state == Partition::State::lent && !fetch(partition)) return;
  if (group_ != nullptr && tensor.may_spread(partition)) group_->answered(partition);
  if (!tensor.settle(partition)) return;
  // What a host says in its root's name is no more than that.
  const bool is_one = sums_on_hosts_ && tensor.operation() == Operation::broadcast;
  TensorState::Ended ended = tensor.end();
  if (is_one && ended.result.ok()) ended.result = 1u;
  --under_way_;
  stats_->rounds.fetch_add(1, std::memory_order_relaxed);
  ended.done(std::move(ended.result));
  call_waiters();
  if (idle()) owner_.on_idle();
}

void DataPlane::when_settled(std::function<void()> done) {
  waiters_.push_back({begun_, std::move(done)});
  call_waiters();
}

void DataPlane::call_waiters() {
  if (waiters_.empty()) return;
  std::uint64_t oldest = UINT64_MAX;
  for (const auto& tensor : tensors_) {
    if (tensor == nullptr) continue;
    if (tensor->under_way()) oldest = std::min(oldest, tensor->operation_number());
    // Only an operation that has begun since brings back a value that has all that the other one pushed.
    const bool is_value = tensor->is_async() && config_.retain && !tensor->partitions().empty();
    if (is_value && !tensor->poisoned()) oldest = std::min(oldest, tensor->last_number());
  }
  const auto over = std::stable_partition(waiters_.begin(), waiters_.end(),
                                          [&](const Waiter& waiter) { return oldest <= waiter.begun; });
  const std::vector<Waiter> ready(std::make_move_iterator(over), std::make_move_iterator(waiters_.end()));
  waiters_.erase(over, waiters_.end());
  for (const Waiter& waiter : ready)
    waiter.done();
}

// False: the lane is broken off, and with it the partition has been seen to.
bool DataPlane::fetch(Partition& partition) {
  TensorState& tensor = *partition.owner;
  if (tensor.needs_spare(partition) && spare_ == nullptr) {
    spare_.reset(new (std::nothrow) std::byte[job_.partition_bytes]);
    if (spare_ == nullptr) {
      tensor.on_failed(partition, tensor.round(),
                       make_error(ErrorCode::out_of_memory,
                                  "no memory for an answer of tensor '" + tensor.shape().name + "'"));
      return true;
    }
  }
  if (tensor.fetch(partition, spare_.get())) return true;
  lanes_[partition.lane.value]->break_off(
      make_error(ErrorCode::unreachable, "it closed the connection while its answer was read"));
  return false;
}

void DataPlane::fail_tensor(TensorId id, const Error& error) {
  TensorState* tensor = find(id);
  if (failed_) return;
  const bool is_ordered = group_size_ > 1 || (tensor != nullptr && tensor->is_grouped());
  if (is_ordered) group_->drop(id, error);
  if (tensor == nullptr || tensor->poisoned()) return;
  tensor->poison(error);
  if (tensor->is_grouped()) return call_waiters();  // it ends in the group's order
  const Round round = tensor->round();
  for (Partition& partition : tensor->partitions()) {
    if (!tensor->on_failed(partition, round, error, true)) continue;
    queue_of(partition.lane).remove(partition);
    settle(partition);
  }
  call_waiters();
}

void DataPlane::fail(const Error& error, std::function<void()> over) {
  failed_ = true;
  if (over) when_over_.push_back(std::move(over));
  if (!end_) {
    end_ = error;
    loop_.cancel(links_timer_);
    links_timer_ = {};
    for (const auto& lane : lanes_)
      lane->close();
    waiters_.clear();
    if (group_ != nullptr) return end_group();
  }
  if (group_ == nullptr || ended_) end_all();
}

void DataPlane::end_all() {
  std::vector<TensorState::Ended> ended;
  for (const auto& tensor : tensors_) {
    if (tensor == nullptr || !tensor->under_way()) continue;
    for (Partition& partition : tensor->partitions())
      queue_of(partition.lane).remove(partition);
    ended.push_back(tensor->abort(ending_of(*tensor)));
  }
  under_way_ = 0;
  ended_ = true;
  for (auto& operation : ended)
    operation.done(std::move(operation.result));
  for (const auto& over : std::exchange(when_over_, {}))
    over();
}

std::optional<DataPlane::UnderWay> DataPlane::under_way(TensorId id) const {
  const TensorState* tensor = find(id);
  if (tensor == nullptr || !tensor->under_way()) return std::nullopt;
  return UnderWay{id, tensor->round(), &tensor->shape().name};
}

std::vector<DataPlane::UnderWay> DataPlane::all_under_way() const {
  std::vector<UnderWay> out;
  if (under_way_ == 0) return out;
  for (std::uint32_t id = 0; id < tensors_.size(); ++id) {
    if (const auto one = under_way(TensorId{id})) out.push_back(*one);
  }
  return out;
}

std::string DataPlane::describe(TensorId id) const {
  const TensorState* tensor = find(id);
  if (tensor == nullptr) return fmt::format("tensor {}, which has not been declared", id.value);
  if (!tensor->under_way()) return fmt::format("'{}', of which no round is under way", tensor->shape().name);
  std::string text =
      fmt::format("round {} of {}: {} of {} partitions answered; waiting for ", tensor->round().value,
                  tensor->shape().name, tensor->answered(), tensor->partitions().size());
  std::vector<bool> named(2 * lanes_.size());
  std::vector<std::string> waiting;
  for (const Partition& partition : tensor->partitions()) {
    const std::size_t lane = partition.lane.value;
    const std::size_t key = 2 * lane + (partition.resuming ? 1 : 0);
    // In a group its servers are waited for when the sum is there.
    const bool is_elsewhere =
        partition.role != Partition::Role::alone && !partition.summed && !partition.resuming;
    if (partition.settled || partition.role == Partition::Role::member || is_elsewhere || named[key])
      continue;
    named[key] = true;
    const std::string name =
        (partition.resuming ? "all workers to resume at " : "") + lanes_[lane]->describe();
    if (std::find(waiting.begin(), waiting.end(), name) == waiting.end()) waiting.push_back(name);
  }
  constexpr std::size_t kNamed = 4;
  for (std::size_t i = 0; i < std::min(waiting.size(), kNamed); ++i)
    text += (i == 0 ? "" : ", ") + waiting[i];
  if (waiting.size() > kNamed) text += fmt::format(" and {} more", waiting.size() - kNamed);
  if (!tensor->is_grouped()) return text;
  if (waiting.empty()) text += group_size_ > 1 ? "the other ranks of this host" : "the GPU";
  return text + group_->describe(*tensor);
}

}  // namespace bps

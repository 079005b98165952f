#include "client/src/lanes/data_plane.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "client/src/engine/scheduler_error.h"

namespace bps {
namespace {

Error dropped_error(const TensorState& tensor) {
  return make_error(ErrorCode::invalid_argument,
                    fmt::format("tensor '{}' has been dropped", tensor.shape().name),
                    "declare it again: that is another tensor");
}

}  // namespace

DataPlane::DataPlane(EventLoop& loop, const Transports& transports, Owner& owner, const ClientConfig& config,
                     Logger log, MakeGroup make_group)
    : loop_(loop),
      owner_(owner),
      config_(config),
      log_(std::move(log)),
      exchange_(job_, lanes_, tensors_, ranks_, handoff_, owner, *stats_),
      lanes_(
          loop, {transports.network, transports.shared_memory, transports.find_rdma},
          transports.make_lane_loops, exchange_, [&owner](const LaneLost& report) { owner.on_link(report); },
          config_, log_, *stats_),
      tensors_({config.rank, config.retain, config.unequal_sums}),
      ranks_(loop, transports.local, std::move(make_group), static_cast<HostRanks::Owner&>(*this), exchange_,
             config_, log_),
      handoff_(job_, lanes_, tensors_, ranks_, config.retain, log_, *stats_) {}

DataPlane::~DataPlane() {
  // Before the memory that their connections may hold.
  lanes_.close();
  ranks_.close();
}

Status DataPlane::start(const JobStart& start, Incarnation incarnation, const SharedKey& ticket,
                        TimePoint patience) {
  if (Status status = job_.start(start); !status.ok()) return status;
  const auto self = std::find_if(start.members.begin(), start.members.end(),
                                 [this](const Member& member) { return member.rank == config_.rank; });
  if (self == start.members.end()) return scheduler_error("a job that does not have this rank");
  stats_->workers.store(start.workers, std::memory_order_relaxed);
  exchange_.start(self->weight);
  if (Status status = ranks_.form(start, *self, patience); !status.ok()) return status;
  return lanes_.start(job_, incarnation, ticket, ranks_.size());
}

Status DataPlane::add_tensor(const TensorDeclaration& declaration, const DeclaredTensor& declared) {
  if (const TensorState* known = tensors_.find(declared.tensor)) {
    if (known->shape().name == declaration.name && known->shape().elements == declaration.elements) return {};
    return scheduler_error(fmt::format("tensor id {} for both '{}' and '{}'", declared.tensor.value,
                                       known->shape().name, declaration.name));
  }
  const std::uint64_t slice = job_.partition_bytes();
  if (Status status = tensors_.check(declaration, declared, slice); !status.ok()) return status;
  for (std::size_t i = 0; i < declared.owners.size(); ++i) {
    const PartitionId partition{static_cast<std::uint32_t>(declared.first_partition.value + i)};
    const bool taken = tensors_.find(partition) != nullptr;
    const LaneIndex owner = declared.owners[i];
    const bool is_closed = lanes_.closed(owner);
    if (owner.value >= lanes_.size() || taken || is_closed) {
      return scheduler_error(fmt::format("partition {} of tensor '{}' on lane {} of {}{}{}", partition.value,
                                         declaration.name, owner.value, lanes_.size(),
                                         taken ? ", already in use" : "", is_closed ? ", closed" : ""));
    }
  }
  TensorState& tensor = tensors_.add(declaration, declared, slice);
  for (Partition& partition : tensor.partitions()) {
    partition.since = job_.first_epoch();
    lanes_.queue_of(partition.lane).reserve(partition.lane, 1);
  }
  if (ranks_.size() == 1) return {};
  const Status added = ranks_.group()->add(tensor);
  if (added.ok()) return {};
  Error error = added.error();
  error.message = fmt::format("no memory for tensor '{}' among the ranks of this host: {}", declaration.name,
                              error.message);
  tensor.poison(error);
  return error;
}

Status DataPlane::on_moved(const Moved& moved) {
  if (exchange_.stopped() || moved.job_run != job_.run()) return {};
  const auto partitions = handoff_.move(moved);
  if (!partitions) return partitions.error();
  exchange_.go_on(*partitions);
  return {};
}

void DataPlane::on_shrunk(const Shrunk& shrunk) {
  if (exchange_.stopped() || !job_.shrink(shrunk)) return;
  lanes_.set_generation(shrunk.generation);
  const std::uint32_t left = job_.now().workers;
  stats_->workers.store(left, std::memory_order_relaxed);
  log_.warn("{}; it goes on with {} of {} workers (generation {})", shrunk.reason, left, config_.world_size,
            shrunk.generation.value);
}

Status DataPlane::begin(Request&& request) {
  TensorState* const tensor = tensors_.find(request.tensor);
  if (tensor == nullptr) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("tensor {} has not been declared", request.tensor.value));
  }
  if (tensor->dropped()) return dropped_error(*tensor);
  if (tensor->poisoned()) return tensor->poison();
  if (tensor->partitions().empty()) {
    const std::uint32_t weight = tensor->shape().ranks.size(config_.world_size);
    loop_.post([done = std::move(request.done), weight] { done(weight); });
    return {};
  }
  if (request.memory() != MemoryKind::host) {
    if (Status s = ranks_.enter(*tensor); !s.ok()) return s;
  }
  GroupPlane* const group = ranks_.group();
  if (group != nullptr && group->left()) return *group->left();
  if (Status s = tensors_.begin(*tensor, std::move(request), loop_.now()); !s.ok()) return s;
  if (tensor->is_grouped()) {
    group->begun(*tensor);
  } else {
    exchange_.begin(*tensor);
  }
  return {};
}

std::shared_ptr<const AnswerView> DataPlane::view(TensorId id) const {
  const TensorState* tensor = tensors_.find(id);
  return tensor != nullptr ? tensor->view() : nullptr;
}

void DataPlane::release(TensorId id) {
  if (TensorState* tensor = tensors_.find(id)) tensor->release();
}

void DataPlane::on_group_failed(const Error& error) {
  if (!exchange_.stopped()) owner_.on_data_failed(error);
}

void DataPlane::fail_tensor(TensorId id, const Error& error) {
  TensorState* tensor = tensors_.find(id);
  if (exchange_.stopped()) return;
  const bool is_ordered = ranks_.size() > 1 || (tensor != nullptr && tensor->is_grouped());
  if (is_ordered) ranks_.group()->fail(id, error);
  if (tensor == nullptr || tensor->poisoned()) return;
  tensor->poison(error);
  if (tensor->is_grouped()) return tensors_.call_waiters();  // it ends in the group's order
  exchange_.fail(*tensor, error);
  tensors_.call_waiters();
}

Status DataPlane::drop(TensorId id) {
  TensorState* const tensor = tensors_.find(id);
  if (tensor == nullptr) {
    return make_error(ErrorCode::invalid_argument, fmt::format("tensor {} has not been declared", id.value));
  }
  if (tensor->dropped()) return dropped_error(*tensor);
  if (Status status = tensor->may_drop(); !status.ok()) return status;
  tensor->drop();
  if (ranks_.group() != nullptr && tensor->has_joined()) ranks_.group()->dropped(id);
  tensors_.call_waiters();
  return {};
}

Status DataPlane::forget(TensorId id) {
  if (exchange_.stopped()) return {};
  TensorState* const tensor = tensors_.find(id);
  if (tensor != nullptr && !tensor->dropped()) {
    return scheduler_error(fmt::format("the end of tensor '{}', which this rank uses", tensor->shape().name));
  }
  if (ranks_.group() != nullptr) ranks_.group()->forget(id);
  if (tensor == nullptr) return {};
  const std::vector<Partition>& partitions = tensor->partitions();
  for (const Partition& partition : partitions)
    lanes_.queue_of(partition.lane).release(partition.lane, 1);
  if (!partitions.empty()) handoff_.forget(partitions.front().id, partitions.size());
  tensors_.forget(id);
  return {};
}

TensorId DataPlane::next_tensor() const {
  return TensorId{static_cast<std::uint32_t>(tensors_.all().size())};
}

PartitionId DataPlane::next_partition() const {
  return PartitionId{static_cast<std::uint32_t>(tensors_.partitions().size())};
}

void DataPlane::fail(const Error& error, std::function<void()> over) {
  exchange_.stop();
  if (over) when_over_.push_back(std::move(over));
  if (!end_) {
    end_ = error;
    lanes_.close();
    tensors_.drop_waiters();
    if (ranks_.group() != nullptr) return ranks_.end(*end_, [this] { end_all(); });
  }
  if (ranks_.group() == nullptr || ended_) end_all();
}

void DataPlane::end_all() {
  std::vector<TensorState::Ended> ended;
  for (const auto& tensor : tensors_.all()) {
    if (tensor == nullptr || !tensor->under_way()) continue;
    for (Partition& partition : tensor->partitions())
      lanes_.queue_of(partition.lane).remove(partition);
    ended.push_back(tensors_.abort(*tensor, ranks_.ending_of(*tensor, *end_)));
  }
  ended_ = true;
  for (auto& operation : ended)
    operation.done(std::move(operation.result));
  for (const auto& over : std::exchange(when_over_, {}))
    over();
}

std::string DataPlane::describe(TensorId id) const {
  const TensorState* tensor = tensors_.find(id);
  if (tensor == nullptr) return fmt::format("tensor {}, which has not been declared", id.value);
  if (!tensor->under_way()) return fmt::format("'{}', of which no round is under way", tensor->shape().name);
  std::string text =
      fmt::format("round {} of {}: {} of {} partitions answered; waiting for ", tensor->round().value,
                  tensor->shape().name, tensor->answered(), tensor->partitions().size());
  std::vector<bool> named(2 * lanes_.size());
  std::vector<std::string> waiting;
  for (const Partition& partition : tensor->partitions()) {
    const std::size_t key = 2 * partition.lane.value + (partition.resuming ? 1 : 0);
    // In a group its servers are waited for when the sum is there.
    const bool is_elsewhere =
        partition.role != Partition::Role::alone && !partition.summed && !partition.resuming;
    if (partition.settled || partition.role == Partition::Role::member || is_elsewhere || named[key])
      continue;
    named[key] = true;
    const std::string name =
        (partition.resuming ? "all workers to resume at " : "") + lanes_[partition.lane].describe();
    if (std::find(waiting.begin(), waiting.end(), name) == waiting.end()) waiting.push_back(name);
  }
  constexpr std::size_t kNamed = 4;
  for (std::size_t i = 0; i < std::min(waiting.size(), kNamed); ++i)
    text += (i == 0 ? "" : ", ") + waiting[i];
  if (waiting.size() > kNamed) text += fmt::format(" and {} more", waiting.size() - kNamed);
  if (!tensor->is_grouped()) return text;
  if (waiting.empty()) text += ranks_.size() > 1 ? "the other ranks of this host" : "the GPU";
  return text + ranks_.group()->describe(*tensor);
}

}  // namespace bps

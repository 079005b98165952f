// What a member does with the order that the leader makes: collectives begin in it, and end in any.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "client/src/group/group_plane.h"
#include "proto/base/assert.h"
#include "proto/wire/limits.h"

namespace bps {

namespace {

Error broken(std::string what) {
  return make_error(ErrorCode::protocol, std::move(what), "use the same bps version on all ranks");
}

}  // namespace

Status GroupPlane::take_batch(const LocalBatch& batch) {
  if (batch.items.empty()) {
    waiting_ = batch.waiting;
    if (setup_) return {};
    setup_ = batch.setup;
    if (is_linked_) begin_group();
    return {};
  }
  if (batch.number != next_batch_ || !setup_)
    return broken(fmt::format("a batch {} in the place of batch {}", batch.number, next_batch_));
  return execute(batch);
}

Status GroupPlane::execute(const LocalBatch& batch) {
  BPS_ASSERT(batch.number == next_batch_);
  const std::uint64_t number = next_batch_++;
  batches_.push_back(1);
  Status status;
  for (const LocalItem& item : batch.items) {
    status = execute(item, number);
    if (!status.ok() || failure_) break;
  }
  group_->end_batch();
  if (!status.ok() || failure_) return status;
  close_batch(number);
  return {};
}

Result<GroupPlane::Tensor*> GroupPlane::find(const LocalItem& item) {
  const auto found = tensors_.find(item.tensor);
  const bool is_known = found != tensors_.end();
  const TensorState* const state = is_known ? found->second.state : nullptr;
  const std::uint64_t end = std::uint64_t{item.first} + item.count;
  if (is_known && state->under_way() && state->round() == item.round && item.count > 0 &&
      end <= state->partitions().size()) {
    return &found->second;
  }
  return broken(
      fmt::format("an order for partitions {} to {} in round {} of tensor {}, which is not under way here",
                  item.first, end, item.round.value, item.tensor.value));
}

// Each partition is summed once a round, and spread once, when its owner has said that it can be.
Status GroupPlane::check(const Tensor& tensor, const LocalItem& item) const {
  const std::vector<Partition>& partitions = tensor.state->partitions();
  bool is_due = item.kind != LocalItem::Kind::refuse || (item.first == 0 && item.count == partitions.size());
  for (std::uint32_t i = item.first; i < item.first + item.count; ++i) {
    const Partition& partition = partitions[i];
    const bool is_untouched = !partition.summed && !partition.spreading && !partition.spread;
    if (item.kind == LocalItem::Kind::spread) {
      const bool is_told = partition.role != Partition::Role::owner || partition.said;
      is_due = is_due && is_told && !partition.spreading && !partition.spread;
    } else {
      is_due = is_due && is_untouched && partition.open == 0;
    }
  }
  if (is_due) return {};
  return broken(fmt::format("an order for partitions {} to {} in round {} of {}, whose turn it is not",
                            item.first, item.first + item.count, item.round.value,
                            tensor.state->shape().name));
}

Status GroupPlane::execute(const LocalItem& item, std::uint64_t batch) {
  switch (item.kind) {
    case LocalItem::Kind::drop: return drop_here(item);
    case LocalItem::Kind::left: return left_here(item);
    case LocalItem::Kind::reduce:
    case LocalItem::Kind::refuse:
    case LocalItem::Kind::spread: break;
  }
  const auto tensor = find(item);
  if (!tensor) return tensor.error();
  if (Status status = check(**tensor, item); !status.ok()) return status;
  if (item.kind == LocalItem::Kind::reduce) {
    reduce(**tensor, item, batch);
  } else if (item.kind == LocalItem::Kind::refuse) {
    refuse(**tensor, item);
  } else {
    spread(**tensor, item, batch);
  }
  return {};
}

GroupPlane::Open& GroupPlane::open(Tensor& tensor, const LocalItem& item, std::uint64_t batch,
                                   Collective& collective) {
  collective.number = next_collective_++;
  collective.tensor = item.tensor;
  collective.round = item.round;
  const Operation operation = tensor.state->request().operation;
  collective.operation = operation == Operation::average ? Operation::sum : operation;
  collective.root = tensor.root;
  collective.memory = tensor.state->request().memory();
  ++batches_[batch - first_batch_];
  for (std::uint32_t i = item.first; i < item.first + item.count; ++i)
    ++tensor.state->partitions()[i].open;
  return open_[collective.number] = {
             &tensor, item.kind == LocalItem::Kind::spread, item.first, item.count, item.weight, batch};
}

void GroupPlane::reduce(Tensor& tensor, const LocalItem& item, std::uint64_t batch) {
  tensor.is_ordered = true;
  TensorState& state = *tensor.state;
  // Nobody here has anything: the owners ask the servers for what another host's rank pushes.
  if (state.request().is_broadcast() && !tensor.root) {
    for (std::uint32_t i = item.first; i < item.first + item.count; ++i) {
      Partition& partition = state.partitions()[i];
      if (partition.role != Partition::Role::owner) continue;
      state.on_summed(partition);
      rounds_.on_group_summed(partition);
    }
    return;
  }
  pieces_.clear();
  for (std::uint32_t i = item.first; i < item.first + item.count; ++i)
    pieces_.push_back(state.reduce_piece(state.partitions()[i]));
  Collective collective;
  open(tensor, item, batch, collective);
  group_->reduce(collective, pieces_);
}

void GroupPlane::refuse(Tensor& tensor, const LocalItem& item) {
  tensor.is_ordered = true;
  TensorState& state = *tensor.state;
  state.on_refused(item.error);
  for (Partition& partition : state.partitions()) {
    if (partition.role != Partition::Role::owner) continue;
    state.on_summed(partition);
    rounds_.on_group_summed(partition);
  }
}

void GroupPlane::spread(Tensor& tensor, const LocalItem& item, std::uint64_t batch) {
  TensorState& state = *tensor.state;
  if (item.error.code != ErrorCode::ok) {
    for (std::uint32_t i = item.first; i < item.first + item.count; ++i) {
      Partition& partition = state.partitions()[i];
      state.on_not_spread(partition, item.error);
      rounds_.on_group_settled(partition);
    }
    return;
  }
  pieces_.clear();
  for (std::uint32_t i = item.first; i < item.first + item.count; ++i) {
    Partition& partition = state.partitions()[i];
    partition.spreading = true;
    pieces_.push_back(state.spread_piece(partition));
  }
  Collective collective;
  open(tensor, item, batch, collective);
  group_->spread(collective, pieces_);
}

// What of the round has not been spread does not come; what is open ends first.
void GroupPlane::end_without(Tensor& tensor, const Error& error, bool told) {
  TensorState& state = *tensor.state;
  if (!state.under_way()) return;
  const Round round = state.round();
  for (Partition& partition : state.partitions()) {
    if (!state.under_way() || state.round() != round) return;
    if (partition.spread || partition.spreading) continue;
    state.on_not_spread(partition, error, told);
    rounds_.on_group_settled(partition);
  }
}

Status GroupPlane::drop_here(const LocalItem& item) {
  const auto found = tensors_.find(item.tensor);
  if (found == tensors_.end()) {
    if (item.tensor.value >= kMaxTensorsPerJob)
      return broken(fmt::format("that tensor {} has failed, which is beyond the limit", item.tensor.value));
    strangers_.emplace(item.tensor, item.error);  // it may be declared here later
    return {};
  }
  if (!found->second.state->poisoned()) found->second.state->poison(item.error);
  end_without(found->second, item.error, true);
  return {};
}

Status GroupPlane::left_here(const LocalItem& item) {
  if (item.member >= place_.ranks.size())
    return broken(fmt::format("that member {} of {} has left", item.member, place_.ranks.size()));
  const std::uint32_t rank = place_.ranks[item.member].value;
  const auto error = [rank](const TensorState& state) {
    return make_error(
        ErrorCode::configuration,
        fmt::format("round {} of {} can never complete: rank {}, of this host, has left the job",
                    state.round().value, state.shape().name, rank),
        "let all ranks push the same number of rounds before one closes its client");
  };
  left_ =
      make_error(ErrorCode::configuration,
                 fmt::format("rank {}, of this host, has left the job: no round can complete any more", rank),
                 "let all ranks push the same number of rounds before one closes its client");
  news_ = {};
  for (auto& [id, tensor] : tensors_) {
    if (tensor.state->under_way() && !tensor.is_ordered) end_without(tensor, error(*tensor.state), true);
    if (failure_) return {};
  }
  if (open_.empty()) {
    loop_.cancel(patience_timer_);
    patience_timer_ = {};
    down_.reset();
  }
  if (const auto done = std::exchange(on_left_, nullptr)) done();
  return {};
}

void GroupPlane::drop(TensorId tensor, const Error& error) {
  if (failure_ || !is_leader()) return;
  if (tensors_.count(tensor) == 0) {
    // Declared otherwise here than by others, who wait for the word of it.
    early_.erase(tensor);
    if (!strangers_.emplace(tensor, error).second) return;
    sequencer_->add({tensor, "", 0, PartitionId{}, 1, 1, 1});
  }
  sequencer_->drop(loop_.now(), tensor, error);
  post([this] { order(); });
}

// ---- what comes of it ----

void GroupPlane::on_summed(std::uint64_t number, std::size_t index) {
  if (failure_) return;
  const Open& open = open_.at(number);
  TensorState& state = *open.tensor->state;
  Partition& partition = state.partitions()[open.first + index];
  state.on_summed(partition);
  rounds_.on_group_summed(partition);
}

void GroupPlane::on_ended(std::uint64_t number, const Status& status) {
  const auto found = open_.find(number);
  BPS_ASSERT(found != open_.end());
  const Open open = found->second;
  open_.erase(found);
  TensorState& state = *open.tensor->state;
  for (std::uint32_t i = open.first; i < open.first + open.count; ++i)
    --state.partitions()[i].open;
  if (failure_) return calm();
  if (!status.ok()) return;  // on_broken says it
  for (std::uint32_t i = open.first; i < open.first + open.count; ++i) {
    Partition& partition = state.partitions()[i];
    if (open.is_spread) state.on_spread(partition, open.weight);
    rounds_.on_group_settled(partition);
    if (failure_) return;
  }
  close_batch(open.batch);
  if (left_ && open_.empty() && down_) {
    loop_.cancel(patience_timer_);
    patience_timer_ = {};
    down_.reset();
  }
}

void GroupPlane::close_batch(std::uint64_t batch) {
  if (--batches_[batch - first_batch_] > 0) return;
  if (is_leader()) sequencer_->executed();
  while (!batches_.empty() && batches_.front() == 0) {
    batches_.pop_front();
    ++first_batch_;
  }
  if (is_leader()) order();
}

std::string GroupPlane::name_of(TensorId tensor) const {
  const auto found = tensors_.find(tensor);
  return found == tensors_.end() ? "tensor " + std::to_string(tensor.value)
                                 : found->second.state->shape().name;
}

void GroupPlane::on_broken(const Error& error) { give_up(error); }

}  // namespace bps

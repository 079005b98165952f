#include "client/src/lanes/exchange.h"

#include <fmt/core.h>

#include <algorithm>
#include <new>
#include <utility>

#include "proto/base/assert.h"

namespace bps {

Exchange::Exchange(const RunningJob& job, LaneSet& lanes, TensorSet& tensors, HostRanks& ranks,
                   WorkerHandoff& handoff, Owner& owner, ClientStats& stats)
    : job_(job),
      lanes_(lanes),
      tensors_(tensors),
      ranks_(ranks),
      handoff_(handoff),
      owner_(owner),
      stats_(stats),
      frame_(PushPull{}),
      stored_(Stored{}) {}

void Exchange::start(std::uint32_t weight) { std::get_if<PushPull>(&frame_)->weight = weight; }

// ---- out ----

void Exchange::begin(TensorState& tensor) {
  if (const auto to = tensor.receiver())
    tensor.set_turns(kMessageTurns + turns_.begin(*to, tensor.partitions().size()));
  for (Partition& partition : tensor.partitions())
    queue(partition);
  pump();
}

// After every change that may have been what it waited for.
void Exchange::queue(Partition& partition) {
  if (partition.owner->may_queue(partition)) lanes_.queue_of(partition.lane).push(partition);
}

void Exchange::pump() {
  lanes_.each_queue([this](ContributionQueue& queue) { pump(queue); });
}

void Exchange::pump(ContributionQueue& queue) {
  while (SendItem* item = queue.pop(tensors_.awaited_bytes())) {
    if (item->turn >= kMessageTurns) turns_.on_going(item->turn - kMessageTurns);
    send(static_cast<Partition&>(*item));
  }
}

void Exchange::send(Partition& partition) {
  TensorState& tensor = *partition.owner;
  Lane& lane = lanes_[partition.lane];
  auto& push = *std::get_if<PushPull>(&frame_);
  push.job_run = job_.run();
  push.partition = partition.id;
  push.round = tensor.round();
  push.epoch = job_.epoch();
  push.generation = job_.generation();
  push.call = tensor.request().call;
  push.scale = tensor.request().scale;
  push.number = tensor.request().number;
  push.whole = tensor.request().whole;
  push.dtype = tensor.shape().dtype;
  push.count = tensor.count();
  if (tensor.refused() || push.error.code != ErrorCode::ok) push.error = tensor.refused().value_or(Error{});
  push.rendezvous = !lanes_.may_send(partition);
  if (push.rendezvous) {
    lanes_.queue_of(partition.lane).take_back(partition);
    tensor.on_rendezvous(partition);
    return lane.send(frame_, {}, 0);
  }
  const Payload payload = tensor.contribution(partition);
  tensor.on_handed_over(partition, !payload.bytes.empty());
  lane.send(frame_, payload, payload.bytes.empty() ? 0 : std::uint64_t{partition.id.value} + 1);
  stats_.pushed_bytes.fetch_add(payload.bytes.size(), std::memory_order_relaxed);
  if (!lane.can_take_more()) lanes_.queue_of(partition.lane).set_ready(partition.lane, false);
}

void Exchange::count_resent() { stats_.resent.fetch_add(1, std::memory_order_relaxed); }

// ---- the end of a partition's round ----

// May break the partition's lane off, so it comes last in what a lane tells.
void Exchange::settle(Partition& partition) {
  TensorState& tensor = *partition.owner;
  if (tensor.is_over(partition)) lanes_.give_back(partition);
  if (partition.state == Partition::State::lent && !fetch(partition)) return;
  report_stored(partition);
  GroupPlane* const group = ranks_.group();
  if (group != nullptr && tensor.may_spread(partition)) group->answered(partition);
  if (!tensor.settle(partition)) return;
  // What a host says in its root's name is no more than that.
  const bool is_one = ranks_.sum_first() && tensor.request().is_broadcast();
  TensorState::Ended ended = tensors_.end(tensor);
  if (is_one && ended.result.ok()) ended.result = 1u;
  stats_.rounds.fetch_add(1, std::memory_order_relaxed);
  ended.done(std::move(ended.result));
  tensors_.call_waiters();
  if (tensors_.idle()) owner_.on_idle();
}

void Exchange::report_stored(Partition& partition) {
  Lane& lane = lanes_[partition.lane];
  if (partition.confirmed != Partition::Confirmed::stored || partition.resuming || stopped_) return;
  if (!lane.welcomed() || partition.owner->poisoned()) return;
  auto& stored = *std::get_if<Stored>(&stored_);
  stored.job_run = job_.run();
  stored.partition = partition.id;
  stored.round = Round{partition.owner->next_round(partition).value - 1};
  stored.epoch = job_.epoch();
  stored.generation = job_.generation();
  partition.confirmed = Partition::Confirmed::told;
  lane.send(stored_, {}, 0);
}

// False: the lane is broken off, and with it the partition has been seen to.
bool Exchange::fetch(Partition& partition) {
  TensorState& tensor = *partition.owner;
  if (tensor.needs_spare(partition) && spare_ == nullptr) {
    spare_.reset(new (std::nothrow) std::byte[job_.partition_bytes()]);
    if (spare_ == nullptr) {
      tensor.on_failed(partition, tensor.round(),
                       make_error(ErrorCode::out_of_memory,
                                  "no memory for an answer of tensor '" + tensor.shape().name + "'"));
      return true;
    }
  }
  if (tensor.fetch(partition, spare_.get())) return true;
  lanes_[partition.lane].break_off(
      make_error(ErrorCode::unreachable, "it closed the connection while its answer was read"));
  return false;
}

void Exchange::go_on(const std::vector<Partition*>& moved) {
  // What only waited for a connection to let go of its memory is done now.
  for (Partition* partition : moved)
    settle(*partition);
  if (!stopped_) pump();
}

void Exchange::fail(TensorState& tensor, const Error& error) {
  const Round round = tensor.round();
  for (Partition& partition : tensor.partitions()) {
    if (!tensor.on_failed(partition, round, error, true)) continue;
    lanes_.queue_of(partition.lane).remove(partition);
    settle(partition);
  }
}

void Exchange::on_group_summed(Partition& partition) {
  queue(partition);
  settle(partition);
  if (!stopped_) pump();
}

void Exchange::on_group_settled(Partition& partition) {
  if (!partition.owner->may_queue(partition)) lanes_.queue_of(partition.lane).remove(partition);
  settle(partition);
}

// ---- in ----

void Exchange::violation(const Lane& lane, const std::string& what) {
  if (stopped_) return;
  stopped_ = true;
  owner_.on_data_failed(make_error(ErrorCode::protocol, lane.name() + " sent " + what,
                                   "run the same bps version everywhere; if it is, please report this"));
}

Partition* Exchange::answered(const Lane& lane, const Aggregate& aggregate) {
  Partition* const partition = tensors_.find_on(lane.index(), aggregate.partition);
  if (partition == nullptr && !tensors_.may_be_forgotten(aggregate.partition)) {
    violation(lane,
              fmt::format("an answer for partition {}, which it does not own", aggregate.partition.value));
  }
  return partition;
}

TensorState::Verdict Exchange::judge(const Partition& partition, const Aggregate& aggregate,
                                     std::uint64_t bytes) const {
  const bool is_owners = aggregate.epoch >= partition.since && aggregate.epoch <= job_.epoch();
  if (!is_owners || aggregate.generation < job_.first_generation() || aggregate.codec != Codec::raw) {
    return TensorState::Verdict::violation;
  }
  return partition.owner->judge(partition, aggregate.round, bytes);
}

std::byte* Exchange::on_lane_payload(Lane& lane, const Message& message, std::uint64_t bytes) {
  const auto* aggregate = std::get_if<Aggregate>(&message);
  if (aggregate == nullptr) {
    violation(lane, fmt::format("{} with a payload of {} bytes", name_of(message), bytes));
    return nullptr;
  }
  Partition* partition = answered(lane, *aggregate);
  if (partition == nullptr) return nullptr;
  switch (judge(*partition, *aggregate, bytes)) {
    case TensorState::Verdict::duplicate: return nullptr;
    case TensorState::Verdict::wanted:
      lanes_.queue_of(partition->lane).remove(*partition);
      return partition->owner->receive(*partition);
    case TensorState::Verdict::violation: break;
  }
  violation(
      lane,
      fmt::format("an answer of {} bytes to round {} of partition {}, which has {} bytes and is in round {}",
                  bytes, aggregate->round.value, partition->id.value, partition->bytes,
                  partition->owner->round().value));
  return nullptr;
}

bool Exchange::on_lane_lent(Lane& lane, Message& message, LentPayload& payload) {
  // What is wrong with it, or is not to be kept, takes the way of every payload.
  const auto* aggregate = std::get_if<Aggregate>(&message);
  if (aggregate == nullptr || payload.scarce()) return false;
  Partition* partition = tensors_.find_on(lane.index(), aggregate->partition);
  // The server needs a slot's memory for other rounds.
  if (partition == nullptr || partition->owner->is_slot()) return false;
  if (judge(*partition, *aggregate, payload.bytes().size()) != TensorState::Verdict::wanted) return false;
  if (!count_taken(lane, message, aggregate->taken)) return true;
  lanes_.queue_of(partition->lane).remove(*partition);
  stats_.pulled_bytes.fetch_add(payload.bytes().size(), std::memory_order_relaxed);
  if (partition->owner->is_async()) partition->owner->on_version(*partition, *aggregate);
  partition->owner->on_lent(*partition, std::move(payload), aggregate->weight);
  settle(*partition);
  if (!stopped_) pump(lanes_.queue_of(lane.index()));
  return true;
}

bool Exchange::count_taken(const Lane& lane, const Message& message, std::uint64_t bytes) {
  if (lanes_.queue_of(lane.index()).on_taken(lane.index(), bytes)) return true;
  violation(lane, fmt::format("{} that counts {} bytes taken, more than was sent or less than before",
                              name_of(message), bytes));
  return false;
}

void Exchange::on_lane_message(Lane& lane, Message& message, std::span<std::byte> payload) {
  const auto taken = [](const Message& m) -> const std::uint64_t* {
    if (const auto* x = std::get_if<Aggregate>(&m)) return &x->taken;
    if (const auto* x = std::get_if<Credit>(&m)) return &x->taken;
    if (const auto* x = std::get_if<NotReady>(&m)) return &x->taken;
    if (const auto* x = std::get_if<ClearToSend>(&m)) return &x->taken;
    if (const auto* x = std::get_if<RoundFailed>(&m)) return &x->taken;
    if (const auto* x = std::get_if<Resumed>(&m)) return &x->taken;
    if (const auto* x = std::get_if<Fetch>(&m)) return &x->taken;
    return nullptr;
  };
  const std::uint64_t* bytes = taken(message);
  if (bytes == nullptr)
    return violation(lane, fmt::format("{}, which has no place on a lane", name_of(message)));
  if (!count_taken(lane, message, *bytes)) return;
  if (const auto* credit = std::get_if<Credit>(&message)) {
    if (credit->eager_limit > 0) lanes_.allow(lane.index(), credit->eager_limit);
  } else if (const auto* aggregate = std::get_if<Aggregate>(&message)) {
    on_aggregate(lane, *aggregate, payload.size());
  } else if (const auto* not_ready = std::get_if<NotReady>(&message)) {
    Partition* p = tensors_.find_on(lane.index(), not_ready->partition);
    if (p != nullptr && p->owner->on_not_ready(*p, not_ready->round)) {
      lanes_.give_back(*p);
      count_resent();
    }
  } else if (const auto* clear = std::get_if<ClearToSend>(&message)) {
    Partition* p = tensors_.find_on(lane.index(), clear->partition);
    if (p != nullptr && p->owner->on_clear_to_send(*p, clear->round)) queue(*p);
  } else if (const auto* round_failed = std::get_if<RoundFailed>(&message)) {
    on_round_failed(lane, *round_failed);
  } else if (const auto* resumed = std::get_if<Resumed>(&message)) {
    on_resumed(lane, *resumed);
  } else if (const auto* wanted = std::get_if<Fetch>(&message)) {
    on_fetch(lane, *wanted);
  }
  if (!stopped_) pump(lanes_.queue_of(lane.index()));
}

void Exchange::on_aggregate(Lane& lane, const Aggregate& aggregate, std::uint64_t payload_bytes) {
  Partition* partition = answered(lane, aggregate);
  if (partition == nullptr) return;
  TensorState& tensor = *partition->owner;
  if (!partition->receiving) {
    // Without payload, or a duplicate whose payload was dropped.
    const auto verdict = judge(*partition, aggregate, payload_bytes);
    // One that could not be received has failed the partition.
    if (verdict == TensorState::Verdict::duplicate) return settle(*partition);
    if (verdict == TensorState::Verdict::violation) {
      return violation(lane, fmt::format("an answer without payload to round {} of partition {}",
                                         aggregate.round.value, aggregate.partition.value));
    }
    lanes_.queue_of(partition->lane).remove(*partition);
  }
  stats_.pulled_bytes.fetch_add(payload_bytes, std::memory_order_relaxed);
  if (tensor.is_async()) tensor.on_version(*partition, aggregate);
  tensor.on_answer(*partition, aggregate.weight);
  settle(*partition);
}

void Exchange::on_round_failed(const Lane& lane, const RoundFailed& failed) {
  Partition* const partition = tensors_.find_on(lane.index(), failed.partition);
  if (partition == nullptr) return;
  TensorState& tensor = *partition->owner;
  if (!tensor.on_failed(*partition, failed.round, failed.error, true)) return;
  lanes_.queue_of(partition->lane).remove(*partition);
  // First for all: what ends with it may be called again at once.
  const bool is_for_good = failed.error.code == ErrorCode::configuration && !tensor.is_async();
  if (is_for_good && !tensor.poisoned()) owner_.on_parted(tensor.id(), failed.error);
  settle(*partition);
}

void Exchange::on_resumed(const Lane& lane, const Resumed& resumed) {
  Partition* partition = tensors_.find_on(lane.index(), resumed.partition);
  if (partition == nullptr || !partition->resuming) return;
  switch (handoff_.on_resumed(*partition, resumed.round)) {
    case TensorState::Resumption::send:
      if (partition->sent_once) count_resent();
      return queue(*partition);
    case TensorState::Resumption::wait: return;
    case TensorState::Resumption::violation: break;
  }
  violation(lane, fmt::format("Resumed with round {} of partition {}, which is in round {} here",
                              resumed.round.value, partition->id.value,
                              partition->owner->next_round(*partition).value));
}

void Exchange::on_fetch(Lane& lane, const Fetch& fetch) {
  Partition* partition = tensors_.find_on(lane.index(), fetch.partition);
  if (partition != nullptr && !partition->lending) return handoff_.on_fetch(lane, *partition, fetch);
  if (tensors_.may_be_forgotten(fetch.partition)) return;
  violation(lane, fmt::format("Fetch for partition {}, {}", fetch.partition.value,
                              partition == nullptr ? "which it does not own" : "which is on its way"));
}

void Exchange::on_lane_sent(Lane& lane, std::uint64_t cookie) {
  const bool was_kept = (cookie & WorkerHandoff::kKeptCookie) != 0;
  const PartitionId id{static_cast<std::uint32_t>((cookie & ~WorkerHandoff::kKeptCookie) - 1)};
  Partition* const found = tensors_.find(id);
  BPS_ASSERT(cookie > 0 && found != nullptr);
  Partition& partition = *found;
  if (was_kept) {
    partition.lending = false;
  } else {
    partition.owner->on_released(partition);
  }
  settle(partition);
  tensors_.forget_read();
  on_lane_writable(lane);
}

void Exchange::on_lane_writable(Lane& lane) {
  if (stopped_) return;
  lanes_.queue_of(lane.index()).set_ready(lane.index(), lane.can_take_more());
  pump(lanes_.queue_of(lane.index()));
}

void Exchange::on_lane_welcomed(Lane& lane) {
  lanes_.on_welcomed(lane);
  handoff_.resume(lane);
  for (Partition* partition : tensors_.partitions()) {
    if (partition != nullptr && partition->lane == lane.index()) report_stored(*partition);
  }
  on_lane_writable(lane);
}

// A server that lives takes back what it has lent when the connection is gone.
void Exchange::on_lane_breaking(Lane& lane) {
  if (stopped_) return;
  for (Partition* partition : tensors_.partitions()) {
    if (partition != nullptr && partition->lane == lane.index()) partition->owner->bring_home(*partition);
  }
}

void Exchange::on_lane_broken(Lane& lane) {
  if (stopped_) return;
  lanes_.on_broken(lane);
  std::vector<Partition*> verdicts;
  for (Partition* const each : tensors_.partitions()) {
    if (each == nullptr || each->lane != lane.index() || each->role == Partition::Role::member) continue;
    Partition& partition = *each;
    TensorState& tensor = *partition.owner;
    lanes_.give_back(partition);
    if (tensor.on_lane_broken(partition, lane.name())) {
      count_resent();
      queue(partition);
    } else if (tensor.under_way() && !partition.queued()) {
      verdicts.push_back(&partition);
    }
    tensor.bring_home(partition);
  }
  for (Partition* partition : verdicts)
    settle(*partition);
  tensors_.forget_read();
  pump();
}

void Exchange::on_lane_refused(Lane& lane, const Error& error) {
  if (stopped_) return;
  stopped_ = true;
  const char* const verb = error.code == ErrorCode::os ? " cannot be reached: " : " refuses this worker: ";
  owner_.on_data_failed(make_error(error.code, lane.name() + verb + error.message, error.advice));
}

}  // namespace bps

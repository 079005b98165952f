#include "client/src/lanes/worker_handoff.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>

#include "proto/wire/tensor_shape.h"

namespace bps {

namespace {

Error moved_error(std::string what) {
  return make_error(ErrorCode::protocol, "the scheduler moved partitions: " + std::move(what),
                    "run the same bps version everywhere; if it is, please report this");
}

// Declare and Declared of tensors that are known already, in pieces.
class TensorReport {
 public:
  TensorReport(JobRun run, const std::function<void(const Message&)>& say) : run_(run), say_(say) {}

  void add(const TensorState& tensor) {
    const std::size_t partitions = tensor.partitions().size() + listed(tensor.declaration());
    const bool is_full = declare_.tensors.size() == kMaxTensorsPerDeclare ||
                         partitions_ + partitions > kMaxPartitionsPerDeclare;
    if (is_full) flush();
    partitions_ += partitions;
    declare_.tensors.push_back(tensor.declaration());
    declared_.tensors.push_back(tensor.declared());
    if (tensor.poisoned()) failed_.push_back({run_, tensor.id(), tensor.poison()});
    if (tensor.dropped()) dropped_.push_back(tensor.id());
  }

  void flush() {
    if (declare_.tensors.empty()) return;
    say_(std::exchange(declare_, {}));
    say_(std::exchange(declared_, {}));
    for (TensorFailed& failed : std::exchange(failed_, {}))
      say_(std::move(failed));
    if (!dropped_.empty()) say_(DropTensors{0, run_, std::exchange(dropped_, {}), {}});
    partitions_ = 0;
  }

 private:
  const JobRun run_;
  const std::function<void(const Message&)>& say_;
  Declare declare_;
  Declared declared_;
  std::vector<TensorFailed> failed_;
  std::vector<TensorId> dropped_;
  std::size_t partitions_ = 0;
};

}  // namespace

WorkerHandoff::WorkerHandoff(RunningJob& job, LaneSet& lanes, TensorSet& tensors, const HostRanks& ranks,
                             bool retain, Logger log, ClientStats& stats)
    : job_(job),
      lanes_(lanes),
      tensors_(tensors),
      ranks_(ranks),
      retain_(retain),
      log_(std::move(log)),
      stats_(stats) {}

bool WorkerHandoff::closes(const Moved& moved, LaneIndex lane) const {
  return lanes_.closed(lane) ||
         std::find(moved.closed.begin(), moved.closed.end(), lane) != moved.closed.end();
}

Status WorkerHandoff::check(const Moved& moved) const {
  if (moved.epoch <= job_.epoch() && !job_.is_piece(moved)) {
    return moved_error(fmt::format("with epoch {} after {}", moved.epoch.value, job_.epoch().value));
  }
  const std::size_t lanes = lanes_.size() + moved.lanes.size();
  if (lanes > kMaxLanesPerJob) return moved_error(fmt::format("to {} lanes", lanes));
  for (const LaneIndex lane : moved.closed) {
    if (lane.value >= lanes) {
      return moved_error(fmt::format("away from lane {} of {}", lane.value, lanes));
    }
  }
  std::vector<bool> is_closed(lanes);
  for (const LaneIndex lane : lanes_.closed_lanes())
    is_closed[lane.value] = true;
  for (const LaneIndex lane : moved.closed)
    is_closed[lane.value] = true;
  for (const PartitionMove& move : moved.moves) {
    if (move.owner.value >= lanes || is_closed[move.owner.value]) {
      return moved_error(fmt::format("partition {} to lane {} of {}{}", move.partition.value,
                                     move.owner.value, lanes,
                                     move.owner.value < lanes ? ", which is closed" : ""));
    }
    const std::uint64_t id = move.partition.value;
    if (id >= kMaxPartitionsPerJob) return moved_error(fmt::format("partition {}", id));
    const Partition* known = tensors_.find(move.partition);
    if (known == nullptr) continue;
    if (!is_closed[known->lane.value]) {
      return moved_error(fmt::format("partition {} away from lane {}, which stays", id, known->lane.value));
    }
  }
  return {};
}

// Without `retain`, answers that others may lack are not here any more. Of what was dropped no partition
// moves here: it has ended, or the job fails.
Status WorkerHandoff::check_retain(const Moved& moved) const {
  if (retain_) return {};
  const bool concerned = std::ranges::any_of(tensors_.partitions(), [&](const Partition* partition) {
    return partition != nullptr && partition->role != Partition::Role::member &&
           closes(moved, partition->lane) && !partition->owner->dropped();
  });
  if (!concerned) return {};
  return make_error(ErrorCode::peer_lost,
                    moved.reason + "; this worker keeps no answers, so it cannot go on at another server",
                    "start the job again; with retain=1 (BPS_RETAIN=1) it would have survived this");
}

Result<std::vector<Partition*>> WorkerHandoff::move(const Moved& moved) {
  if (Status status = check(moved); !status.ok()) return status.error();
  if (Status status = check_retain(moved); !status.ok()) return status.error();
  const std::size_t lanes = lanes_.size();
  const Epoch since = job_.move(moved);
  lanes_.set_epoch(moved.epoch);
  if (Status status = lanes_.add(moved.lanes, moved.closed); !status.ok()) return status.error();

  std::vector<Partition*> verdicts = close_lanes(moved.closed);
  std::vector<bool> gets_some(lanes_.size());
  for (const PartitionMove& move : moved.moves) {
    gets_some[move.owner.value] = true;
    Partition* const partition = tensors_.find(move.partition);
    if (partition == nullptr) {
      if (ranks_.owns(move.partition)) undeclared_[move.partition] = move.owner;
      continue;
    }
    partition->lane = move.owner;
    partition->since = since;
    lanes_.queue_of(move.owner).reserve(move.owner, 1);
  }
  log_move(moved, gets_some);
  for (std::size_t i = lanes; i < lanes_.size(); ++i) {
    Lane& lane = *lanes_.all()[i];
    if (!lane.closed()) lane.open();  // a server may have come and gone since the last Moved
  }
  for (const auto& lane : lanes_.all()) {
    if (gets_some[lane->index().value] && lane->welcomed()) resume(*lane);
  }
  return verdicts;
}

std::vector<Partition*> WorkerHandoff::close_lanes(const std::vector<LaneIndex>& closed) {
  std::vector<Partition*> verdicts;
  if (closed.empty()) return verdicts;
  std::vector<bool> closing(lanes_.size());
  for (const LaneIndex lane : closed)
    closing[lane.value] = !lanes_.closed(lane);
  const auto each = [&](const auto& act) {
    for (Partition* partition : tensors_.partitions()) {
      const bool is_ours = partition != nullptr && partition->role != Partition::Role::member;
      if (is_ours && closing[partition->lane.value]) act(*partition, *partition->owner);
    }
  };
  // A server that lives takes back what it has lent when the connection is gone.
  each([](Partition& partition, TensorState& tensor) { tensor.bring_home(partition); });
  for (const LaneIndex lane : closed)
    lanes_.close(lane);
  lanes_.count();
  each([&](Partition& partition, TensorState& tensor) {
    lanes_.queue_of(partition.lane).remove(partition);
    lanes_.give_back(partition);
    partition.resuming = true;
    partition.counted = false;
    tensor.on_lane_broken(partition, lanes_[partition.lane].name());
    tensor.bring_home(partition);
    if (tensor.under_way()) verdicts.push_back(&partition);
  });
  tensors_.forget_read();
  return verdicts;
}

void WorkerHandoff::log_move(const Moved& moved, const std::vector<bool>& gets_some) const {
  std::vector<std::string> owners;
  for (const auto& lane : lanes_.all()) {
    std::string name = lane->name();
    if (!gets_some[lane->index().value] || std::find(owners.begin(), owners.end(), name) != owners.end())
      continue;
    owners.push_back(std::move(name));
  }
  std::string to;
  for (std::size_t i = 0; i < owners.size(); ++i)
    to += (i == 0 ? "" : i + 1 == owners.size() ? " and " : ", ") + owners[i];
  log_.info("{}; {} partitions move{}{} (epoch {})", moved.reason, moved.moves.size(),
            to.empty() ? "" : " to ", to, moved.epoch.value);
}

void WorkerHandoff::resume(Lane& lane) {
  Message message = Resume{job_.run(), job_.epoch(), job_.generation(), {}};
  std::vector<StoredRounds>& piece = std::get_if<Resume>(&message)->partitions;
  for (Partition* partition : tensors_.partitions()) {
    if (partition == nullptr || partition->lane != lane.index()) continue;
    if (partition->role == Partition::Role::member) continue;
    if (!partition->resuming || partition->resume_said) continue;
    if (partition->owner->poisoned()) continue;  // no server knows it any more
    partition->resume_said = true;
    piece.push_back(partition->owner->stored(*partition));
    if (piece.size() < kMaxPartitionsPerResume) continue;
    lane.send(message, {}, 0);
    piece.clear();
  }
  for (const auto& [id, owner] : undeclared_) {
    if (!leaving_ || owner != lane.index() || tensors_.find_on(lane.index(), id) != nullptr) continue;
    piece.push_back({id, Round{}});
    if (piece.size() < kMaxPartitionsPerResume) continue;
    lane.send(message, {}, 0);
    piece.clear();
  }
  if (!piece.empty()) lane.send(message, {}, 0);
}

void WorkerHandoff::leave() {
  leaving_ = true;
  for (const auto& lane : lanes_.all()) {
    if (!undeclared_.empty() && lane->welcomed()) resume(*lane);
  }
}

void WorkerHandoff::forget(PartitionId first, std::size_t count) {
  const auto from = undeclared_.lower_bound(first);
  undeclared_.erase(from,
                    undeclared_.lower_bound(PartitionId{static_cast<std::uint32_t>(first.value + count)}));
}

TensorState::Resumption WorkerHandoff::on_resumed(Partition& partition, Round open) {
  if (!partition.owner->poisoned()) return partition.owner->on_resumed(partition, open);
  partition.resuming = false;
  return TensorState::Resumption::wait;
}

void WorkerHandoff::on_fetch(Lane& lane, Partition& partition, const Fetch& fetch) {
  const TensorState::Retention kept = partition.owner->retained(partition, fetch);
  Retained retained{job_.run(),        partition.id, fetch.round, job_.epoch(),
                    job_.generation(), kept.weight,  kept.error,  fetch.version};
  if (kept.value != nullptr) {
    retained.broadcasts = kept.value->broadcasts;
    retained.applied = kept.value->applied;
  }
  const bool has_payload = !kept.bytes.empty();
  partition.lending = has_payload;
  lanes_.queue_of(lane.index()).count_sent(lane.index(), kept.bytes.size());
  stats_.pushed_bytes.fetch_add(kept.bytes.size(), std::memory_order_relaxed);
  lane.send(std::move(retained), kept.bytes, has_payload ? kKeptCookie | (partition.id.value + 1) : 0);
  if (!lane.can_take_more()) lanes_.queue_of(lane.index()).set_ready(lane.index(), false);
}

void WorkerHandoff::report(const std::function<void(const Message&)>& say) {
  job_.may_lack_moves();
  say(job_.now());
  TensorReport tensors(job_.run(), say);
  for (const auto& tensor : tensors_.all()) {
    if (tensor != nullptr) tensors.add(*tensor);
  }
  tensors.flush();
}

}  // namespace bps

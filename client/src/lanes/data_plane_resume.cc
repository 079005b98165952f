// Partitions that get another owner (decision 0009): the lanes to the old one are closed for good, and
// nothing is sent to the new one before all workers have said how far they are.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "client/src/lanes/data_plane.h"

namespace bps {

namespace {

Error moved_error(std::string what) {
  return make_error(ErrorCode::protocol, "the scheduler moved partitions: " + std::move(what),
                    "run the same bps version everywhere; if it is, please report this");
}

}  // namespace

bool DataPlane::closes(const Moved& moved, LaneIndex lane) const {
  return (lane.value < lanes_.size() && lanes_[lane.value]->closed()) ||
         std::find(moved.closed.begin(), moved.closed.end(), lane) != moved.closed.end();
}

Status DataPlane::check(const Moved& moved) const {
  // Further moves of an epoch come in messages of their own; the first one has the lanes.
  const bool is_piece =
      moved.epoch == job_.epoch && job_.epoch > first_epoch_ && moved.lanes.empty() && moved.closed.empty();
  if (moved.epoch <= job_.epoch && !is_piece) {
    return moved_error(fmt::format("with epoch {} after {}", moved.epoch.value, job_.epoch.value));
  }
  const std::size_t lanes = lanes_.size() + moved.lanes.size();
  if (lanes > kMaxLanesPerJob) return moved_error(fmt::format("to {} lanes", lanes));
  for (const LaneIndex lane : moved.closed) {
    if (lane.value >= lanes) {
      return moved_error(fmt::format("away from lane {} of {}", lane.value, lanes));
    }
  }
  std::vector<bool> is_closed(lanes);
  for (std::size_t i = 0; i < lanes_.size(); ++i)
    is_closed[i] = lanes_[i]->closed();
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
    const Partition* known = id < partitions_.size() ? partitions_[id] : nullptr;
    if (known == nullptr) continue;
    if (!is_closed[known->lane.value]) {
      return moved_error(fmt::format("partition {} away from lane {}, which stays", id, known->lane.value));
    }
  }
  return {};
}

// Without `retain`, answers that others may lack are not here any more.
Status DataPlane::check_retain(const Moved& moved) const {
  if (config_.retain) return {};
  const bool concerned = std::any_of(partitions_.begin(), partitions_.end(), [&](const Partition* partition) {
    return partition != nullptr && partition->role != Partition::Role::member &&
           closes(moved, partition->lane);
  });
  if (!concerned) return {};
  return make_error(ErrorCode::peer_lost,
                    moved.reason + "; this worker keeps no answers, so it cannot go on at another server",
                    "start the job again; with retain=1 (BPS_RETAIN=1) it would have survived this");
}

Status DataPlane::on_moved(const Moved& moved) {
  if (failed_ || moved.job_run != job_.job_run) return {};
  if (Status status = check(moved); !status.ok()) return status;
  if (Status status = check_retain(moved); !status.ok()) return status;
  const std::size_t lanes = lanes_.size();
  const bool is_piece = moved.epoch == job_.epoch;
  if (!is_piece && !std::exchange(may_lack_moves_, false)) epoch_before_ = job_.epoch;
  job_.epoch = moved.epoch;
  job_.lanes.insert(job_.lanes.end(), moved.lanes.begin(), moved.lanes.end());
  hello_.epoch = moved.epoch;
  if (Status status = add_lanes(moved.lanes, moved.closed); !status.ok()) return status;
  for (const auto& lane : lanes_)
    lane->set_epoch(moved.epoch);

  std::vector<Partition*> verdicts;
  close_lanes(moved.closed, verdicts);
  std::vector<bool> gets_some(lanes_.size());
  for (const PartitionMove& move : moved.moves) {
    gets_some[move.owner.value] = true;
    const std::uint64_t id = move.partition.value;
    Partition* const partition = id < partitions_.size() ? partitions_[id] : nullptr;
    if (partition == nullptr) {
      if (is_mine(move.partition)) strangers_[move.partition] = move.owner;
      continue;
    }
    partition->lane = move.owner;
    partition->since = epoch_before_.next();
    queue_of(move.owner).reserve(move.owner, 1);
  }
  say(moved, gets_some);
  for (std::size_t i = lanes; i < lanes_.size(); ++i) {
    if (!lanes_[i]->closed()) lanes_[i]->open();  // a server may have come and gone since the last Moved
  }
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (gets_some[i] && lanes_[i]->welcomed()) resume(*lanes_[i]);
  }
  // What only waited for a connection to let go of its memory is done now.
  for (Partition* partition : verdicts)
    settle(*partition);
  if (!failed_) pump();
  return {};
}

void DataPlane::on_shrunk(const Shrunk& shrunk) {
  if (failed_ || shrunk.job_run != job_.job_run || shrunk.generation <= job_.generation) return;
  job_.generation = shrunk.generation;
  hello_.generation = shrunk.generation;
  for (const auto& lane : lanes_)
    lane->set_generation(shrunk.generation);
  std::erase_if(job_.members, [&](const Member& member) { return member.rank == shrunk.lost; });
  stats_->workers.store(job_.members.size(), std::memory_order_relaxed);
  log_.warn("{}; it goes on with {} of {} workers (generation {})", shrunk.reason, job_.members.size(),
            config_.world_size, shrunk.generation.value);
}

void DataPlane::close_lanes(const std::vector<LaneIndex>& closed, std::vector<Partition*>& verdicts) {
  if (closed.empty()) return;
  std::vector<bool> closing(lanes_.size());
  for (const LaneIndex lane : closed)
    closing[lane.value] = !lanes_[lane.value]->closed();
  const auto each = [&](const auto& act) {
    for (Partition* partition : partitions_) {
      const bool is_ours = partition != nullptr && partition->role != Partition::Role::member;
      if (is_ours && closing[partition->lane.value]) act(*partition, *partition->owner);
    }
  };
  // A server that lives takes back what it has lent when the connection is gone.
  each([](Partition& partition, TensorState& tensor) { tensor.bring_home(partition); });
  for (const LaneIndex lane : closed) {
    lanes_[lane.value]->close();
    links_.closed(lane);
    queue_of(lane).end_session(lane);
  }
  count_lanes();
  each([&](Partition& partition, TensorState& tensor) {
    queue_of(partition.lane).remove(partition);
    give_back(partition);
    partition.resuming = true;
    partition.counted = false;
    tensor.on_lane_broken(partition, lanes_[partition.lane.value]->name());
    tensor.bring_home(partition);
    if (tensor.under_way()) verdicts.push_back(&partition);
  });
}

void DataPlane::say(const Moved& moved, const std::vector<bool>& gets_some) const {
  std::vector<std::string> owners;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    std::string name = lanes_[i]->name();
    if (!gets_some[i] || std::find(owners.begin(), owners.end(), name) != owners.end()) continue;
    owners.push_back(std::move(name));
  }
  std::string to;
  for (std::size_t i = 0; i < owners.size(); ++i)
    to += (i == 0 ? "" : i + 1 == owners.size() ? " and " : ", ") + owners[i];
  log_.info("{}; {} partitions move{}{} (epoch {})", moved.reason, moved.moves.size(),
            to.empty() ? "" : " to ", to, moved.epoch.value);
}

// Says how far this worker is with all partitions of the lane whose owner has not heard it in this session.
void DataPlane::resume(Lane& lane) {
  Message message = Resume{job_.job_run, job_.epoch, job_.generation, {}};
  std::vector<StoredRounds>& piece = std::get_if<Resume>(&message)->partitions;
  for (Partition* partition : partitions_) {
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
  for (const auto& [id, owner] : strangers_) {
    if (!leaving_ || owner != lane.index() || find(lane, id) != nullptr) continue;
    piece.push_back({id, Round{}});
    if (piece.size() < kMaxPartitionsPerResume) continue;
    lane.send(message, {}, 0);
    piece.clear();
  }
  if (!piece.empty()) lane.send(message, {}, 0);
}

void DataPlane::leave() {
  leaving_ = true;
  for (const auto& lane : lanes_) {
    if (!strangers_.empty() && lane->welcomed()) resume(*lane);
  }
}

void DataPlane::on_resumed(Lane& lane, const Resumed& resumed) {
  Partition* partition = find(lane, resumed.partition);
  if (partition == nullptr || !partition->resuming) return;
  if (partition->owner->poisoned()) {
    partition->resuming = false;
    return;
  }
  switch (partition->owner->on_resumed(*partition, resumed.round)) {
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

void DataPlane::on_fetch(Lane& lane, const Fetch& fetch) {
  Partition* partition = find(lane, fetch.partition);
  if (partition == nullptr || partition->lending) {
    return violation(lane,
                     fmt::format("Fetch for partition {}, {}", fetch.partition.value,
                                 partition == nullptr ? "which it does not own" : "which is on its way"));
  }
  const TensorState::Retention kept = partition->owner->retained(*partition, fetch);
  Retained retained{job_.job_run,    partition->id, fetch.round, job_.epoch,
                    job_.generation, kept.weight,   kept.error,  fetch.version};
  if (kept.value != nullptr) {
    retained.broadcasts = kept.value->broadcasts;
    retained.applied = kept.value->applied;
  }
  const bool has_payload = !kept.bytes.empty();
  partition->lending = has_payload;
  queue_of(lane.index()).count_sent(lane.index(), kept.bytes.size());
  stats_->pushed_bytes.fetch_add(kept.bytes.size(), std::memory_order_relaxed);
  lane.send(std::move(retained), kept.bytes, has_payload ? kKeptCookie | (partition->id.value + 1) : 0);
  if (!lane.can_take_more()) queue_of(lane.index()).set_ready(lane.index(), false);
}

}  // namespace bps

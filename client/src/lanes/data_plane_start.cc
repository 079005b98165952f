// How a job begins: which way each lane goes, how many loops they live on, and their credit.
#include <fmt/core.h>

#include <algorithm>

#include "client/src/engine/scheduler_error.h"
#include "client/src/lanes/data_plane.h"
#include "client/src/lanes/default_credit.h"

namespace bps {

Status DataPlane::start(const JobStart& start, Incarnation incarnation, const SharedKey& ticket,
                        TimePoint patience) {
  const std::uint64_t slice = start.partition_bytes;
  if (slice < kMinPartitionBytes || slice > kMaxPartitionBytes || slice % kPartitionBytesMultiple != 0) {
    return scheduler_error(fmt::format("partition_bytes {}, which is outside the limits", slice));
  }
  if (start.lanes.empty()) return scheduler_error("a job without servers");
  const auto self = std::find_if(start.members.begin(), start.members.end(),
                                 [this](const Member& member) { return member.rank == config_.rank; });
  if (self == start.members.end()) return scheduler_error("a job that does not have this rank");
  job_ = start;
  first_epoch_ = start.epoch;
  first_generation_ = start.generation;
  stats_->workers.store(start.members.size(), std::memory_order_relaxed);
  ticket_ = ticket;
  std::get_if<PushPull>(&frame_)->weight = self->weight;
  if (Status status = form_group(start, *self, patience); !status.ok()) return status;
  start_loops();
  hello_.job_run = start.job_run;
  hello_.rank = config_.rank;
  hello_.incarnation = incarnation;
  hello_.epoch = start.epoch;
  hello_.generation = start.generation;
  if (Status status = add_lanes(start.lanes); !status.ok()) return status;
  for (const auto& lane : lanes_)
    lane->open();
  return {};
}

// Lanes that live on one loop share its part of the credit, so how much there is and how many loops is one
// decision.
void DataPlane::start_loops() {
  const auto goes_over_network = [this](const LaneTarget& target) {
    const Lane::Way way = better_way(target);
    const bool has_no_device =
        way == Lane::Way::rdma && config_.transport == TransportChoice::automatic && !rdma();
    return way == Lane::Way::network || has_no_device;
  };
  const bool only_network = std::ranges::all_of(job_.lanes, goes_over_network);
  const bool only_own_sockets =
      group_size_ == 1 && only_network &&
      std::ranges::all_of(job_.lanes, [this](const LaneTarget& target) { return on_this_host(target); });
  // What is under way of a host is as much as without a group.
  const std::uint64_t slice = job_.partition_bytes;
  const std::uint64_t share =
      default_credit_bytes(config_.bandwidth_bps, only_own_sockets, job_.lanes.size(), slice) / group_size_;
  const std::uint64_t credit = config_.credit_bytes.value_or(std::max(share, 2 * slice));
  if (transports_.make_lane_loops) {
    DataThreadsFacts facts;
    // Each has a credit of its own, under which a partition may always be under way.
    facts.lanes = std::min<std::uint64_t>(job_.lanes.size(), std::max<std::uint64_t>(credit / slice, 1));
    facts.only_network = only_network && group_size_ == 1;
    facts.only_own_sockets = only_own_sockets;
    make_loops(std::move(facts));
  }
  share_credit(credit);
}

// `facts`: those that are of the lanes.
void DataPlane::make_loops(DataThreadsFacts facts) {
  facts.wanted = config_.data_threads;
  facts.bandwidth_bps = config_.bandwidth_bps;
  facts.workers_here = static_cast<std::size_t>(std::ranges::count_if(
      job_.members, [this](const Member& member) { return member.host == config_.host; }));
  LaneLoops made = transports_.make_lane_loops(facts);
  lane_loops_ = std::move(made.loops);
  if (!made.complete) {
    log_.warn("{} data threads and no more: {}", lane_loops_.size(), to_string(made.complete.error()));
  } else if (config_.data_threads.value_or(1) > lane_loops_.size()) {
    log_.warn("{} data threads (BPS_DATA_THREADS), not {}: {}", lane_loops_.size(), *config_.data_threads,
              facts.only_network ? fmt::format("{} lanes have something to do beside each other", facts.lanes)
                                 : "lanes are not all over TCP, or ranks of this host sum first");
  }
}

void DataPlane::share_credit(std::uint64_t credit) {
  const std::uint64_t slice = job_.partition_bytes;
  queues_.resize(lane_loops_.size());
  spare_credit_.clear();
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    // Of the lanes there are now, as many live there.
    const std::size_t lanes = (job_.lanes.size() + queues_.size() - 1 - i) / queues_.size();
    const std::uint64_t part =
        credit / job_.lanes.size() * lanes + credit % job_.lanes.size() * lanes / job_.lanes.size();
    queues_[i].set_credit(part);
    spare_credit_.push_back(part > slice ? part - slice : 0);
  }
}

Status DataPlane::add_lanes(const std::vector<LaneTarget>& targets, const std::vector<LaneIndex>& closing) {
  // What the servers have taken but not reported must never fill the credit: all open lanes of a queue
  // together hide at most half of what is left beside one partition.
  const std::size_t count = queues_.size();
  std::vector<std::uint64_t> free(count), more(count);
  for (std::size_t i = 0; i < count; ++i)
    free[i] = spare_credit_[i] / 2;
  std::vector<bool> closes(lanes_.size() + targets.size());
  for (const LaneIndex lane : closing)
    closes[lane.value] = true;
  for (const auto& lane : lanes_) {
    const std::size_t index = lane->index().value;
    if (!lane->closed() && !closes[index])
      free[index % count] -= std::min(free[index % count], lane->credit_report_bytes());
  }
  for (std::size_t i = lanes_.size(); i < closes.size(); ++i)
    ++more[i % count];
  for (const LaneTarget& target : targets) {
    const auto ways = ways_to(target);
    if (!ways) return ways.error();
    best_way_ = std::max(best_way_, ways->better);
    shares_memory_ = shares_memory_ || ways->better == Lane::Way::shared_memory;
    const LaneIndex index{static_cast<std::uint32_t>(lanes_.size())};
    const std::size_t place = index.value % count;
    hello_.credit_report_bytes =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(free[place] / more[place], UINT32_MAX));
    const bool is_socket_of_this_host = on_this_host(target) && ways->better == Lane::Way::network;
    hello_.cpu = is_socket_of_this_host ? lane_loops_[place].cpu : std::nullopt;
    lanes_.push_back(std::make_unique<Lane>(*lane_loops_[place].loop, *ways, static_cast<Lane::Owner&>(*this),
                                            index, target, hello_, log_));
  }
  for (ContributionQueue& queue : queues_)
    queue.set_lane_count(lanes_.size());
  allowances_.resize(lanes_.size());
  return {};
}

const Result<Transport*>& DataPlane::rdma() {
  if (rdma_) return *rdma_;
  rdma_ = transports_.find_rdma ? transports_.find_rdma() : make_error(ErrorCode::os, "there is none");
  if (!*rdma_ && config_.transport == TransportChoice::automatic)
    log_.warn("servers offer RDMA, and this worker goes without, over TCP: {}; or set BPS_TRANSPORT to tcp",
              to_string(rdma_->error()));
  return *rdma_;
}

bool DataPlane::on_this_host(const LaneTarget& target) const {
  return target.host == config_.host && !config_.host.empty();
}

Lane::Way DataPlane::better_way(const LaneTarget& target) const {
  const bool automatic = config_.transport == TransportChoice::automatic;
  const bool may_share = on_this_host(target) && transports_.shared_memory != nullptr;
  if (may_share && (automatic || config_.transport == TransportChoice::shm)) return Lane::Way::shared_memory;
  if (config_.transport == TransportChoice::rdma || (automatic && target.rdma)) return Lane::Way::rdma;
  return Lane::Way::network;
}

Result<Lane::Ways> DataPlane::ways_to(const LaneTarget& target) {
  const TransportChoice choice = config_.transport;
  Lane::Ways ways{transports_.network};
  ways.ticket = ticket_;
  ways.fallbacks = &fallbacks_;
  ways.only_better = choice == TransportChoice::shm || choice == TransportChoice::rdma;
  const Lane::Way better = better_way(target);
  if (choice == TransportChoice::shm && better != Lane::Way::shared_memory) {
    return make_error(
        ErrorCode::configuration,
        fmt::format("transport shm is set, but server {} ({}) is on host {} and this worker on {}",
                    target.server.value, to_string(target.endpoint), target.host, config_.host),
        "set transport auto (BPS_TRANSPORT), or use servers on this host only");
  }
  if (better == Lane::Way::shared_memory) {
    ways.better = better;
    ways.transport = transports_.shared_memory;
  } else if (better == Lane::Way::rdma) {
    if (rdma()) {
      ways.better = better;
      ways.transport = **rdma_;
    } else if (choice == TransportChoice::rdma) {
      return rdma_->error();
    }
  }
  return ways;
}

}  // namespace bps

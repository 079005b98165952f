#include "client/src/lanes/lane_set.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "client/src/tensors/default_credit.h"

namespace bps {

LaneSet::LaneSet(EventLoop& loop, LaneRoutes::Transports transports, MakeLaneLoops make_loops,
                 Lane::Owner& owner, ReportLink report_link, const ClientConfig& config, Logger log,
                 ClientStats& stats)
    : loop_(loop),
      routes_(std::move(transports), config, log),
      make_loops_(std::move(make_loops)),
      owner_(owner),
      report_link_(std::move(report_link)),
      config_(config),
      log_(std::move(log)),
      stats_(stats) {
  loops_.emplace_back().loop.loop = &loop;
}

LaneSet::~LaneSet() { close(); }

Status LaneSet::start(const RunningJob& job, Incarnation incarnation, const SharedKey& ticket,
                      std::uint32_t group_size) {
  routes_.set_ticket(ticket);
  start_loops(job.now(), group_size);
  hello_.job_run = job.run();
  hello_.rank = config_.rank;
  hello_.incarnation = incarnation;
  hello_.epoch = job.epoch();
  hello_.generation = job.generation();
  if (Status status = add(job.now().lanes); !status.ok()) return status;
  for (const auto& lane : lanes_)
    lane->open();
  return {};
}

// Lanes that live on one loop share its part of the credit, so how much there is and how many loops is one
// decision.
void LaneSet::start_loops(const JobStart& job, std::uint32_t group_size) {
  const bool only_network = std::ranges::all_of(
      job.lanes, [this](const LaneTarget& target) { return routes_.goes_over_network(target); });
  const bool only_own_sockets =
      group_size == 1 && only_network && std::ranges::all_of(job.lanes, [this](const LaneTarget& target) {
        return routes_.is_on_this_host(target);
      });
  // What is under way of a host is as much as without a group.
  const std::uint64_t slice = job.partition_bytes;
  const std::uint64_t share =
      default_credit_bytes(config_.bandwidth_bps, only_own_sockets, job.lanes.size(), slice) / group_size;
  const std::uint64_t credit = config_.credit_bytes.value_or(std::max(share, 2 * slice));
  if (make_loops_) {
    DataThreadsFacts facts;
    // Each has a credit of its own, under which a partition may always be under way.
    facts.lanes = std::min<std::uint64_t>(job.lanes.size(), std::max<std::uint64_t>(credit / slice, 1));
    facts.only_network = only_network && group_size == 1;
    facts.only_own_sockets = only_own_sockets;
    make_loops(job, std::move(facts));
  }
  share_credit(job, credit);
}

// `facts`: those that are of the lanes.
void LaneSet::make_loops(const JobStart& job, DataThreadsFacts facts) {
  facts.wanted = config_.data_threads;
  facts.bandwidth_bps = config_.bandwidth_bps;
  facts.workers_here = job.host_workers;
  const LaneLoops made = make_loops_(facts);
  loops_.resize(made.loops.size());
  for (std::size_t i = 0; i < loops_.size(); ++i)
    loops_[i].loop = made.loops[i];
  if (!made.complete) {
    log_.warn("{} data threads and no more: {}", loops_.size(), to_string(made.complete.error()));
  } else if (config_.data_threads.value_or(1) > loops_.size()) {
    log_.warn("{} data threads (BPS_DATA_THREADS), not {}: {}", loops_.size(), *config_.data_threads,
              facts.only_network ? fmt::format("{} lanes have something to do beside each other", facts.lanes)
                                 : "lanes are not all over TCP, or ranks of this host sum first");
  }
}

void LaneSet::share_credit(const JobStart& job, std::uint64_t credit) {
  const std::uint64_t slice = job.partition_bytes;
  for (std::size_t i = 0; i < loops_.size(); ++i) {
    // Of the lanes there are now, as many live there.
    const std::size_t lanes = (job.lanes.size() + loops_.size() - 1 - i) / loops_.size();
    const std::uint64_t part =
        credit / job.lanes.size() * lanes + credit % job.lanes.size() * lanes / job.lanes.size();
    loops_[i].queue.set_credit(part);
    loops_[i].spare_credit = part > slice ? part - slice : 0;
  }
}

Status LaneSet::add(const std::vector<LaneTarget>& targets, const std::vector<LaneIndex>& closing) {
  // What the servers have taken but not reported must never fill the credit: all open lanes of a queue
  // together hide at most half of what is left beside one partition.
  const std::size_t count = loops_.size();
  std::vector<std::uint64_t> free(count), more(count);
  for (std::size_t i = 0; i < count; ++i)
    free[i] = loops_[i].spare_credit / 2;
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
    const auto ways = routes_.to(target);
    if (!ways) return ways.error();
    const LaneIndex index{static_cast<std::uint32_t>(lanes_.size())};
    const std::size_t place = index.value % count;
    hello_.credit_report_bytes =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(free[place] / more[place], UINT32_MAX));
    const bool is_socket_of_this_host = routes_.is_on_this_host(target) && ways->better == Lane::Way::network;
    const LaneLoop& loop = loops_[place].loop;
    hello_.cpu = is_socket_of_this_host ? loop.cpu : std::nullopt;
    lanes_.push_back(std::make_unique<Lane>(*loop.loop, *ways, owner_, index, target, hello_, log_));
  }
  each_queue([this](ContributionQueue& queue) { queue.set_lane_count(lanes_.size()); });
  allowances_.resize(lanes_.size());
  return {};
}

void LaneSet::close(LaneIndex lane) {
  lanes_[lane.value]->close();
  links_.closed(lane);
  queue_of(lane).end_session(lane);
}

void LaneSet::close() {
  loop_.cancel(links_timer_);
  links_timer_ = {};
  for (const auto& lane : lanes_)
    lane->close();
}

void LaneSet::set_epoch(Epoch epoch) {
  hello_.epoch = epoch;
  for (const auto& lane : lanes_)
    lane->set_epoch(epoch);
}

void LaneSet::set_generation(Generation generation) {
  hello_.generation = generation;
  for (const auto& lane : lanes_)
    lane->set_generation(generation);
}

bool LaneSet::may_send(Partition& partition) {
  if (partition.counted) return false;
  const TensorState& tensor = *partition.owner;
  const Lane& lane = *lanes_[partition.lane.value];
  const bool waits_for_others = !tensor.request().call.is_copy() && !tensor.is_async();
  if (partition.asked || partition.cost == 0 || !waits_for_others || lane.way() == Lane::Way::shared_memory)
    return true;
  Allowance& allowance = allowances_[partition.lane.value];
  if (partition.cost > allowance.limit - std::min(allowance.used, allowance.limit)) return false;
  allowance.used += partition.cost;
  partition.eager = true;
  return true;
}

void LaneSet::give_back(Partition& partition) {
  if (std::exchange(partition.eager, false)) allowances_[partition.lane.value].used -= partition.cost;
}

void LaneSet::on_welcomed(const Lane& lane) {
  count();
  links_.up(lane.index());
  report_links();
}

void LaneSet::on_broken(const Lane& lane) {
  count();
  links_.down(lane.index(), lane.target(), lane.away_since(), lane.trouble()->message);
  report_links();
  queue_of(lane.index()).end_session(lane.index());
}

// Now, and again when the next report is due.
void LaneSet::report_links() {
  for (const LaneLost& report : links_.take(loop_.now()))
    report_link_(report);
  loop_.cancel(links_timer_);
  links_timer_ = {};
  const auto due = links_.due();
  if (!due) return;
  links_timer_ = loop_.at(*due, [this] {
    links_timer_ = {};
    report_links();
  });
}

std::vector<LaneIndex> LaneSet::closed_lanes() const {
  std::vector<LaneIndex> closed;
  for (const auto& lane : lanes_) {
    if (lane->closed()) closed.push_back(lane->index());
  }
  return closed;
}

void LaneSet::count() {
  std::uint64_t up = 0, shared = 0, rdma = 0;
  for (const auto& lane : lanes_) {
    if (!lane->welcomed()) continue;
    ++up;
    if (lane->way() == Lane::Way::shared_memory) ++shared;
    if (lane->way() == Lane::Way::rdma) ++rdma;
  }
  stats_.lanes.store(up, std::memory_order_relaxed);
  stats_.shm_lanes.store(shared, std::memory_order_relaxed);
  stats_.rdma_lanes.store(rdma, std::memory_order_relaxed);
}

}  // namespace bps

#include "scheduler/handoff/lane_table.h"

#include <algorithm>
#include <map>

#include "proto/wire/limits.h"
#include "scheduler/placement/placement.h"

namespace bps {

std::vector<LaneTarget> LaneTable::from(std::size_t first) const {
  return {lanes_.begin() + static_cast<std::ptrdiff_t>(first), lanes_.end()};
}

std::size_t LaneTable::retired_count() const {
  return static_cast<std::size_t>(std::count(retired_.begin(), retired_.end(), true));
}

void LaneTable::clear() {
  lanes_.clear();
  retired_.clear();
}

void LaneTable::restore(std::vector<LaneTarget> lanes, Epoch epoch) {
  lanes_ = std::move(lanes);
  retired_.assign(lanes_.size(), false);
  epoch_ = epoch;
}

bool LaneTable::has_lane_to(ServerId server, Incarnation incarnation, bool is_kept) const {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const bool is_open = !retired_[i] || is_kept;
    if (lanes_[i].server == server && lanes_[i].incarnation == incarnation && is_open) return true;
  }
  return false;
}

// Neighbours in the lane table lie on different servers: lanes with equal claims get partitions in turn.
void LaneTable::add(const std::set<ServerId>& used, const std::set<ServerId>& unwilling, bool is_bounded) {
  std::vector<const ServerRecord*> servers;
  std::uint32_t most_shards = 0;
  std::size_t lanes = lanes_.size();
  for (const auto& [id, server] : run_.servers.all()) {
    const bool has_lanes =
        std::any_of(lanes_.begin(), lanes_.end(), [&, number = id](const LaneTarget& lane) {
          return lane.server == number && !retired_[static_cast<std::size_t>(&lane - lanes_.data())];
        });
    if (!server.usable() || used.count(id) != 0 || has_lanes || unwilling.count(id) != 0) continue;
    if (is_bounded && lanes + server.shards > kMaxLanesPerJob) continue;
    lanes += server.shards;
    servers.push_back(&server);
    most_shards = std::max(most_shards, server.shards);
  }
  for (std::uint32_t shard = 0; shard < most_shards; ++shard) {
    for (const ServerRecord* server : servers) {
      if (shard >= server->shards) continue;
      lanes_.push_back(
          {server->id, server->incarnation, server->endpoint, shard, server->host, server->rdma});
      retired_.push_back(false);
    }
  }
}

std::vector<TensorCatalog::Lane> LaneTable::place(const std::set<ServerId>& full) const {
  // Null: it gets nothing.
  const auto server_of = [&](std::size_t lane) -> const ServerRecord* {
    return retired_[lane] ? nullptr : run_.servers.find(lanes_[lane].server);
  };
  const auto claim = [&](const ServerRecord& server) {
    return full.contains(server.id) ? 0 : server.draining ? 1 : 2;
  };
  int least = 0;  // that the best have
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (const ServerRecord* server = server_of(i)) least = std::max(least, claim(*server));
  }
  // A host that sums sends and gets each byte once.
  std::map<Rank, PlacementNode> groups;
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (!worker.loss.empty()) continue;
    PlacementNode& node = groups.try_emplace(worker.leader, PlacementNode{worker.host, 0}).first->second;
    node.bandwidth_bps = std::max(node.bandwidth_bps, worker.bandwidth_bps);
  }
  std::vector<PlacementNode> workers;
  for (auto& [leader, node] : groups)
    workers.push_back(std::move(node));
  std::map<ServerId, std::size_t> place_of;
  std::vector<PlacementNode> nodes;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const ServerRecord* server = server_of(i);
    if (server == nullptr || claim(*server) < least) continue;
    if (!place_of.emplace(lanes_[i].server, nodes.size()).second) continue;
    nodes.push_back({server->host, server->bandwidth_bps});
  }
  const std::vector<double> shares = server_shares(workers, nodes);
  std::vector<TensorCatalog::Lane> lanes;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    TensorCatalog::Lane& lane =
        lanes.emplace_back(TensorCatalog::Lane{lanes_[i].server, lanes_[i].shard, 0, retired_[i]});
    const ServerRecord* server = server_of(i);
    const auto placed = place_of.find(lane.server);
    if (server == nullptr || placed == place_of.end()) continue;
    lane.share = shares[placed->second] / server->shards;
  }
  return lanes;
}

}  // namespace bps

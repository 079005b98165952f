#include "scheduler/tables/nodes.h"

#include <algorithm>
#include <utility>

namespace bps {

void Nodes::add(Incarnation incarnation, Node node, TimePoint heard) {
  if (node.role == PeerRole::worker) ++worker_count_;
  if (node.role == PeerRole::admin) ++admin_count_;
  nodes_.emplace(incarnation, std::move(node));
  detector_.add(incarnation, heard);
}

Node* Nodes::find(Incarnation incarnation) {
  const auto it = nodes_.find(incarnation);
  return it == nodes_.end() ? nullptr : &it->second;
}

void Nodes::make_done(Node& worker) {
  worker.role = PeerRole::done;
  --worker_count_;
}

void Nodes::forget(Incarnation incarnation) {
  const auto it = nodes_.find(incarnation);
  if (it == nodes_.end()) return;
  if (it->second.role == PeerRole::worker) --worker_count_;
  if (it->second.role == PeerRole::admin) --admin_count_;
  detector_.remove(incarnation);
  nodes_.erase(it);
}

void Nodes::clear() {
  for (const auto& [incarnation, node] : nodes_)
    detector_.remove(incarnation);
  nodes_.clear();
  worker_count_ = 0;
  admin_count_ = 0;
}

std::vector<Incarnation> Nodes::workers_of(JobRun run) const {
  std::vector<Incarnation> workers;
  for (const auto& [incarnation, node] : nodes_) {
    if (node.role == PeerRole::worker && node.run == run) workers.push_back(incarnation);
  }
  return workers;
}

bool Nodes::any_without_connection() const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [](const auto& entry) { return entry.second.peer.value == 0; });
}

Silence Nodes::silence_at(TimePoint now) const {
  return [this, now](Incarnation node) { return detector_.silence(node, now); };
}

}  // namespace bps

#include "scheduler/tables/failure_detector.h"

#include <algorithm>

namespace bps {

TimePoint FailureDetector::deadline_of(const Node& node) const {
  const TimePoint silent = node.heard + options_.heartbeat_deadline;
  return node.lost ? std::min(silent, *node.lost + options_.reconnect_grace) : silent;
}

void FailureDetector::add(Incarnation node, TimePoint now) {
  const auto [it, inserted] = nodes_.insert_or_assign(node, Node{now, std::nullopt});
  next_check_ = std::min(next_check_, deadline_of(it->second));
}

void FailureDetector::heard(Incarnation node, TimePoint now) {
  const auto it = nodes_.find(node);
  if (it != nodes_.end()) it->second.heard = std::max(it->second.heard, now);
}

void FailureDetector::connection_lost(Incarnation node, TimePoint now) {
  const auto it = nodes_.find(node);
  if (it == nodes_.end() || it->second.lost) return;
  it->second.lost = now;
  next_check_ = std::min(next_check_, deadline_of(it->second));
}

void FailureDetector::connection_back(Incarnation node, TimePoint now) {
  heard(node, now);
  const auto it = nodes_.find(node);
  if (it != nodes_.end()) it->second.lost.reset();
}

bool FailureDetector::suspected(Incarnation node) const {
  const auto it = nodes_.find(node);
  return it != nodes_.end() && it->second.lost.has_value();
}

std::optional<Duration> FailureDetector::silence(Incarnation node, TimePoint now) const {
  const auto it = nodes_.find(node);
  if (it == nodes_.end()) return std::nullopt;
  return std::max(now - it->second.lost.value_or(it->second.heard), Duration::zero());
}

std::vector<FailureDetector::Death> FailureDetector::expire(TimePoint now, const Unread& unread) {
  std::vector<Death> deaths;
  if (now < next_check_) return deaths;
  next_check_ = TimePoint::max();
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    const Node& node = it->second;
    const TimePoint deadline = deadline_of(node);
    if (now < deadline) {
      next_check_ = std::min(next_check_, deadline);
      ++it;
      continue;
    }
    if (unread && unread(it->first, now - deadline)) {
      next_check_ = now;
      ++it;
      continue;
    }
    const bool lost = node.lost.has_value();
    deaths.push_back({it->first, lost, now - (lost ? *node.lost : node.heard)});
    it = nodes_.erase(it);
  }
  return deaths;
}

}  // namespace bps

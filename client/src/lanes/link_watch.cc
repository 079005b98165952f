#include "client/src/lanes/link_watch.h"

#include <algorithm>
#include <utility>

namespace bps {

void LinkWatch::down(LaneIndex lane, const LaneTarget& target, TimePoint since, std::string reason) {
  const auto [entry, is_new] = down_.try_emplace(lane, Down{target.server, target.incarnation, since, {}});
  entry->second.since = std::min(entry->second.since, since);
  entry->second.reason = std::move(reason);
  Server& server = servers_[target.server];
  server.incarnation = target.incarnation;
  server.owes = false;  // what was said holds again
}

void LinkWatch::up(LaneIndex lane) { settle(lane, true); }
void LinkWatch::closed(LaneIndex lane) { settle(lane, false); }

void LinkWatch::settle(LaneIndex lane, bool is_there) {
  const auto found = down_.find(lane);
  if (found == down_.end()) return;
  const ServerId id = found->second.server;
  down_.erase(found);
  if (longest(id) != nullptr) return;
  Server& server = servers_.at(id);
  server.owes = server.told && is_there;
  if (!server.owes) servers_.erase(id);
}

const LinkWatch::Down* LinkWatch::longest(ServerId server) const {
  const Down* first = nullptr;
  for (const auto& [lane, down] : down_) {
    if (down.server == server && (first == nullptr || down.since < first->since)) first = &down;
  }
  return first;
}

std::optional<TimePoint> LinkWatch::due() const {
  std::optional<TimePoint> next;
  const auto consider = [&](TimePoint when) { next = next ? std::min(*next, when) : when; };
  for (const auto& [id, server] : servers_) {
    if (server.owes) consider(TimePoint{});
    if (!server.told) consider(longest(id)->since + kHeartbeatTimeout);
  }
  return next;
}

std::vector<LaneLost> LinkWatch::take(TimePoint now) {
  std::vector<LaneLost> out;
  for (auto it = servers_.begin(); it != servers_.end();) {
    auto& [id, server] = *it;
    if (server.owes) {
      out.push_back({id, server.incarnation, false, 0, {}});
      it = servers_.erase(it);
      continue;
    }
    if (!server.told && longest(id)->since + kHeartbeatTimeout <= now) {
      server.told = true;
      out.push_back(about(id, now));
    }
    ++it;
  }
  return out;
}

std::vector<LaneLost> LinkWatch::again(TimePoint now) const {
  std::vector<LaneLost> out;
  for (const auto& [id, server] : servers_) {
    if (server.told && !server.owes) out.push_back(about(id, now));
  }
  return out;
}

LaneLost LinkWatch::about(ServerId server, TimePoint now) const {
  const Down& down = *longest(server);
  const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(now - down.since);
  return {server, down.incarnation, true, static_cast<std::uint64_t>(std::max<std::int64_t>(age.count(), 0)),
          down.reason};
}

}  // namespace bps

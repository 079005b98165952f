#include "client/src/tensors/contribution_queue.h"

#include <algorithm>

namespace bps {

void ContributionQueue::set_lane_count(std::size_t lanes) {
  lanes_.resize(lanes);
  ready_.reserve(lanes);
}

void ContributionQueue::reserve(LaneIndex lane, std::size_t more) {
  Lane& l = at(lane);
  l.reserved += more;
  // Tensors are declared one by one: exact reservations would copy the heap each time.
  if (l.heap.capacity() < l.reserved) l.heap.reserve(std::max(l.reserved, 2 * l.heap.capacity()));
}

void ContributionQueue::put_right(Lane& lane) {
  if (!lane.ready) return;
  lane.position == kNotInHeap ? ready_.push(lane) : ready_.reordered(lane);
}

void ContributionQueue::leave(Lane& lane) {
  if (lane.position != kNotInHeap) ready_.remove(lane);
}

void ContributionQueue::set_ready(LaneIndex lane, bool ready) {
  Lane& l = at(lane);
  if (l.ready == ready) return;
  l.ready = ready;
  if (!ready) {
    leave(l);
  } else if (!l.heap.empty()) {
    put_right(l);
  }
}

void ContributionQueue::push(SendItem& item) {
  Lane& lane = at(item.lane);
  lane.heap.push(item);
  ++queued_;
  if (&lane.heap.front() == &item) put_right(lane);
}

void ContributionQueue::remove(SendItem& item) {
  if (!item.queued()) return;
  Lane& lane = at(item.lane);
  const bool was_first = &lane.heap.front() == &item;
  lane.heap.remove(item);
  --queued_;
  if (lane.heap.empty()) {
    leave(lane);
  } else if (was_first) {
    put_right(lane);
  }
}

SendItem* ContributionQueue::pop(std::uint64_t awaited_bytes) {
  if (ready_.empty()) return nullptr;
  SendItem& best = ready_.front().heap.front();
  // Strictly the best or nothing: a smaller one that slipped past would starve large partitions.
  const std::uint64_t more = std::min(awaited_bytes / kMostMore, credit_bytes_) * kMostMore;
  const std::uint64_t then = under_way_bytes_ + best.cost;
  if (under_way_bytes_ > 0 && then > credit_bytes_ && then - credit_bytes_ > more) return nullptr;
  remove(best);
  at(best.lane).sent += best.cost;
  under_way_bytes_ += best.cost;
  return &best;
}

void ContributionQueue::take_back(const SendItem& item) {
  at(item.lane).sent -= item.cost;
  under_way_bytes_ -= item.cost;
}

void ContributionQueue::count_sent(LaneIndex lane, std::uint64_t bytes) {
  at(lane).sent += bytes;
  under_way_bytes_ += bytes;
}

bool ContributionQueue::on_taken(LaneIndex lane, std::uint64_t taken) {
  Lane& l = at(lane);
  if (taken < l.taken || taken > l.sent) return false;
  under_way_bytes_ -= taken - l.taken;
  l.taken = taken;
  return true;
}

void ContributionQueue::end_session(LaneIndex lane) {
  Lane& l = at(lane);
  under_way_bytes_ -= l.sent - l.taken;
  l.sent = 0;
  l.taken = 0;
  set_ready(lane, false);
}

}  // namespace bps

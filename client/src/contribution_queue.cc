#include "client/src/contribution_queue.h"

#include <algorithm>

#include "proto/base/assert.h"

namespace bps {

bool ContributionQueue::before(const SendItem& a, const SendItem& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  if (a.tensor != b.tensor) return a.tensor < b.tensor;
  return a.index < b.index;
}

void ContributionQueue::reserve(LaneIndex lane, std::size_t more) {
  Lane& l = at(lane);
  l.reserved += more;
  // Tensors are declared one by one: exact reservations would copy the heap each time.
  if (l.heap.capacity() < l.reserved) l.heap.reserve(std::max(l.reserved, 2 * l.heap.capacity()));
}

void ContributionQueue::sift_up(Lane& lane, std::size_t position) {
  SendItem* item = lane.heap[position];
  while (position > 0) {
    const std::size_t parent = (position - 1) / 2;
    if (!before(*item, *lane.heap[parent])) break;
    lane.heap[position] = lane.heap[parent];
    lane.heap[position]->position = static_cast<std::uint32_t>(position);
    position = parent;
  }
  lane.heap[position] = item;
  item->position = static_cast<std::uint32_t>(position);
}

void ContributionQueue::sift_down(Lane& lane, std::size_t position) {
  SendItem* item = lane.heap[position];
  const std::size_t size = lane.heap.size();
  while (true) {
    std::size_t child = 2 * position + 1;
    if (child >= size) break;
    if (child + 1 < size && before(*lane.heap[child + 1], *lane.heap[child])) ++child;
    if (!before(*lane.heap[child], *item)) break;
    lane.heap[position] = lane.heap[child];
    lane.heap[position]->position = static_cast<std::uint32_t>(position);
    position = child;
  }
  lane.heap[position] = item;
  item->position = static_cast<std::uint32_t>(position);
}

void ContributionQueue::push(SendItem& item) {
  BPS_ASSERT(!item.queued());
  Lane& lane = at(item.lane);
  lane.heap.push_back(&item);
  sift_up(lane, lane.heap.size() - 1);
  ++queued_;
}

void ContributionQueue::remove(SendItem& item) {
  if (!item.queued()) return;
  Lane& lane = at(item.lane);
  const std::size_t hole = item.position;
  BPS_ASSERT(hole < lane.heap.size() && lane.heap[hole] == &item);
  SendItem* last = lane.heap.back();
  lane.heap.pop_back();
  item.position = SendItem::kNotQueued;
  --queued_;
  if (last == &item) return;
  lane.heap[hole] = last;
  last->position = static_cast<std::uint32_t>(hole);
  sift_down(lane, hole);
  sift_up(lane, last->position);
}

SendItem* ContributionQueue::pop() {
  SendItem* best = nullptr;
  for (const Lane& lane : lanes_) {
    if (!lane.ready || lane.heap.empty()) continue;
    if (best == nullptr || before(*lane.heap.front(), *best)) best = lane.heap.front();
  }
  if (best == nullptr) return nullptr;
  // Strictly the best or nothing: a smaller one that slipped past would starve large partitions.
  if (under_way_bytes_ > 0 && under_way_bytes_ + best->cost > credit_bytes_) return nullptr;
  remove(*best);
  at(best->lane).sent += best->cost;
  under_way_bytes_ += best->cost;
  return best;
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
  l.ready = false;
}

}  // namespace bps

#include "client/src/tensors/contribution_queue.h"

#include <catch2/catch.hpp>
#include <deque>
#include <random>
#include <tuple>
#include <vector>

namespace bps {
namespace {

SendItem item(std::int32_t priority, std::uint32_t tensor, std::uint32_t order, std::uint32_t lane,
              std::uint32_t cost) {
  return {priority, round_turn(TensorId{tensor}) + order, LaneIndex{lane}, cost};
}

ContributionQueue make_queue(std::uint64_t credit, std::size_t lanes) {
  ContributionQueue queue(credit);
  queue.set_lane_count(lanes);
  for (std::uint32_t i = 0; i < lanes; ++i)
    queue.set_ready(LaneIndex{i}, true);
  return queue;
}

}  // namespace

TEST_CASE("contribution queue: priority, then tensor, then partition, over all lanes") {
  ContributionQueue queue = make_queue(1000, 2);
  SendItem a = item(0, 1, 1, 0, 1), b = item(0, 1, 0, 1, 1), c = item(5, 9, 3, 1, 1), d = item(0, 0, 7, 0, 1),
           e = item(-2, 0, 0, 0, 1);
  for (SendItem* i : {&a, &b, &c, &d, &e})
    queue.push(*i);
  CHECK(queue.pop() == &c);
  CHECK(queue.pop() == &d);
  CHECK(queue.pop() == &b);
  CHECK(queue.pop() == &a);
  CHECK(queue.pop() == &e);
  CHECK(queue.pop() == nullptr);
  CHECK(queue.empty());
}

TEST_CASE("contribution queue: what has no payload goes first, over all lanes, also without credit") {
  ContributionQueue queue = make_queue(10, 2);
  SendItem urgent = item(5, 0, 0, 0, 10), bulk = item(0, 1, 0, 1, 10), take = item(0, 7, 0, 0, 0),
           late = item(0, 8, 0, 1, 0);
  for (SendItem* i : {&urgent, &bulk, &late, &take})
    queue.push(*i);
  CHECK(queue.pop() == &take);
  CHECK(queue.pop() == &late);
  CHECK(queue.pop() == &urgent);
  CHECK(queue.pop() == nullptr);  // no credit is left
  queue.push(take);
  CHECK(queue.pop() == &take);
}

TEST_CASE("contribution queue: who waits for messages has more credit, four times as much at most") {
  ContributionQueue queue = make_queue(100, 1);
  std::deque<SendItem> items;
  for (std::uint32_t i = 0; i < 10; ++i)
    queue.push(items.emplace_back(item(0, 1, i, 0, 50)));
  const auto popped = [&](std::uint64_t awaited) {
    int count = 0;
    while (queue.pop(awaited) != nullptr)
      ++count;
    return count;
  };
  CHECK(popped(0) == 2);
  CHECK(popped(49) == 0);
  CHECK(popped(150) == 3);
  CHECK(popped(~0ull) == 3);
  CHECK(queue.under_way_bytes() == 400);
  CHECK(popped(0) == 0);
}

TEST_CASE("contribution queue: an urgent item overtakes what is queued, not what is sent") {
  ContributionQueue queue = make_queue(100, 1);
  std::deque<SendItem> bulk;
  for (std::uint32_t i = 0; i < 10; ++i)
    queue.push(bulk.emplace_back(item(0, 1, i, 0, 50)));
  CHECK(queue.pop() == &bulk[0]);
  CHECK(queue.pop() == &bulk[1]);
  CHECK(queue.pop() == nullptr);  // credit
  SendItem urgent = item(10, 2, 0, 0, 50);
  queue.push(urgent);
  CHECK(queue.on_taken(LaneIndex{0}, 50));
  CHECK(queue.pop() == &urgent);
}

TEST_CASE("contribution queue: a lane that is not ready does not stop the others") {
  ContributionQueue queue = make_queue(1000, 2);
  SendItem a = item(9, 0, 0, 0, 10), b = item(0, 1, 0, 1, 10);
  queue.push(a);
  queue.push(b);
  queue.set_ready(LaneIndex{0}, false);
  CHECK(queue.pop() == &b);
  CHECK(queue.pop() == nullptr);
  queue.set_ready(LaneIndex{0}, true);
  CHECK(queue.pop() == &a);
}

TEST_CASE("contribution queue: one partition may be under way however small the credit") {
  ContributionQueue queue = make_queue(10, 1);
  SendItem a = item(0, 0, 0, 0, 1000), b = item(0, 0, 1, 0, 1000);
  queue.push(a);
  queue.push(b);
  CHECK(queue.pop() == &a);
  CHECK(queue.pop() == nullptr);
  CHECK(queue.on_taken(LaneIndex{0}, 1000));
  CHECK(queue.pop() == &b);
  CHECK(queue.under_way_bytes() == 1000);
}

TEST_CASE("contribution queue: the end of a session gives its credit back and counts from zero") {
  ContributionQueue queue = make_queue(100, 2);
  SendItem a = item(0, 0, 0, 0, 60), b = item(0, 0, 1, 1, 40), c = item(0, 0, 2, 0, 60);
  for (SendItem* i : {&a, &b, &c})
    queue.push(*i);
  CHECK(queue.pop() == &a);
  CHECK(queue.pop() == &b);
  CHECK(queue.pop() == nullptr);
  CHECK(queue.on_taken(LaneIndex{0}, 20));
  CHECK(queue.under_way_bytes() == 80);
  queue.end_session(LaneIndex{0});
  CHECK(queue.under_way_bytes() == 40);
  CHECK(queue.pop() == nullptr);  // the lane is not ready
  queue.set_ready(LaneIndex{0}, true);
  CHECK(queue.pop() == &c);
  CHECK(queue.on_taken(LaneIndex{0}, 60));
}

TEST_CASE("contribution queue: a peer that takes more than was sent, or takes back, is broken") {
  ContributionQueue queue = make_queue(100, 1);
  SendItem a = item(0, 0, 0, 0, 60);
  queue.push(a);
  CHECK_FALSE(queue.on_taken(LaneIndex{0}, 1));
  REQUIRE(queue.pop() == &a);
  CHECK_FALSE(queue.on_taken(LaneIndex{0}, 61));
  CHECK(queue.on_taken(LaneIndex{0}, 60));
  CHECK_FALSE(queue.on_taken(LaneIndex{0}, 59));
}

TEST_CASE("contribution queue: random pushes, removals and pops keep the order") {
  std::mt19937 random(7);
  ContributionQueue queue = make_queue(~0ull, 3);
  std::deque<SendItem> items;
  for (std::uint32_t i = 0; i < 500; ++i) {
    items.push_back(item(static_cast<std::int32_t>(random() % 5), static_cast<std::uint32_t>(random() % 20),
                         i, static_cast<std::uint32_t>(random() % 3), 1));
  }
  for (SendItem& i : items)
    queue.push(i);
  for (SendItem& i : items) {
    if (random() % 3 == 0) queue.remove(i);
  }
  std::size_t left = 0;
  for (const SendItem& i : items)
    left += i.queued() ? 1 : 0;
  const auto key = [](const SendItem& i) { return std::tuple(-i.priority, i.turn); };
  const SendItem* last = nullptr;
  while (const SendItem* next = queue.pop()) {
    if (last != nullptr) CHECK(key(*last) < key(*next));
    last = next;
    --left;
  }
  CHECK(left == 0);
}

TEST_CASE("contribution queue: random lanes that come and go give what a look at all of them would") {
  std::mt19937 random(11);
  constexpr std::uint32_t kLanes = 37;
  ContributionQueue queue(~0ull);
  queue.set_lane_count(5);
  queue.set_lane_count(kLanes);  // more of them later
  std::vector<bool> ready(kLanes);
  std::deque<SendItem> items;
  for (std::uint32_t i = 0; i < 300; ++i) {
    items.push_back(item(static_cast<std::int32_t>(random() % 5), static_cast<std::uint32_t>(random() % 20),
                         i, static_cast<std::uint32_t>(random() % kLanes), 1));
  }
  const auto key = [](const SendItem& i) { return std::tuple(-i.priority, i.turn); };
  for (int step = 0; step < 20'000; ++step) {
    SendItem& any = items[random() % items.size()];
    const LaneIndex lane{static_cast<std::uint32_t>(random() % kLanes)};
    switch (random() % 6) {
      case 0:
      case 1:
        if (!any.queued()) queue.push(any);
        break;
      case 2: queue.remove(any); break;
      case 3: queue.end_session(lane), ready[lane.value] = false; break;
      case 4: queue.set_ready(lane, true), ready[lane.value] = true; break;
      default: {
        const SendItem* best = nullptr;
        for (const SendItem& i : items) {
          if (i.queued() && ready[i.lane.value] && (best == nullptr || key(i) < key(*best))) best = &i;
        }
        REQUIRE(queue.pop() == best);
      }
    }
  }
}

}  // namespace bps
